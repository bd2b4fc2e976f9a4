// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/exchange.h"

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "ronde/ronde.h"
#include "tools/bench/gradient_lists.h"
#include "tools/bench/pattern.h"
#include "tools/bench/regime.h"
#include "tools/bench/ring.h"
#include "tools/bench/turns.h"

namespace ronde::tool {
namespace {

constexpr int kIterations = 20;

constexpr std::array kColumns{
    Column{"model", "model"},           Column{"tensors", "tensors"},
    Column{"bytes", "bytes"},           Column{"p50 ms", "p50_ms", 3},
    Column{"MPI ms", "baseline_ms", 3}, Column{"packed ms", "packed_baseline_ms", 3},
    Column{"memcpy ms", "floor_ms", 3}, Column{"MPI/ours", "ratio", 2},
};

Request sum_of(float* data, std::size_t count, std::string name) {
  Request request;
  request.name = std::move(name);
  request.shape = {static_cast<std::int64_t>(count)};
  request.input = request.output = data;
  return request;
}

/// The gradients of one model on this rank, each in memory of its own, and the ways to sum them.
class Gradients {
 public:
  explicit Gradients(const GradientList& list) : packed_(list.elements() * sizeof(float)) {
    packed_.split(bytes_of(list.elements()), 0);
    for (const std::size_t count : list.tensors) {
      Ring& memory = tensors_.emplace_back(bytes_of(count));
      memory.split(bytes_of(count), 0);
      parts_.push_back({reinterpret_cast<float*>(memory.next()), count,
                        std::string(list.model) + " " + std::to_string(parts_.size())});
    }
  }

  void exchange() {
    std::vector<Work> works;
    works.reserve(parts_.size());
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      works.push_back(submit(sum_of(part->data, part->count, part->name)));
    }
    for (const Work& work : works) work.wait();
  }

  void one_call_a_tensor(Subject& mpi) {
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      mpi.run(sum_of(part->data, part->count, {}));
    }
  }

  void one_packed_call(Subject& mpi) {
    float* const all = packed();
    pack();
    mpi.run(sum_of(all, elements_, {}));
    std::size_t offset = 0;
    for (const Part& part : parts_) {
      std::memcpy(part.data, all + offset, bytes_of(part.count));
      offset += part.count;
    }
  }

  /// Copies every gradient once.
  void pack() {
    float* const all = packed();
    elements_ = 0;
    for (const Part& part : parts_) {
      std::memcpy(all + elements_, part.data, bytes_of(part.count));
      elements_ += part.count;
    }
  }

  /// Calls `sum` with known gradients, checks the result, and leaves zeros.
  void check(Session& session, const std::function<void()>& sum) {
    const Topology& topology = session.topology();
    each([&](Part& part, std::size_t shift) {
      fill(DataType::F32, part.data, part.count,
           [&](std::size_t index) { return pattern(topology.rank, index + shift); });
    });
    sum();
    session.alike([&] {
      each([&](Part& part, std::size_t shift) {
        const std::string wrong =
            difference(DataType::F32, part.data, part.count, [&](std::size_t index) {
              int expected = 0;
              for (int rank = 0; rank < topology.size; ++rank) {
                expected += pattern(rank, index + shift);
              }
              return expected;
            });
        if (!wrong.empty()) throw Error("the sum of gradient " + part.name + " is wrong: " + wrong);
        std::memset(part.data, 0, bytes_of(part.count));
      });
    });
  }

 private:
  struct Part {
    float* data = nullptr;
    std::size_t count = 0;
    std::string name;
  };

  static std::size_t bytes_of(std::size_t count) { return count * sizeof(float); }
  float* packed() { return reinterpret_cast<float*>(packed_.next()); }

  /// With a shift of the pattern that tells the tensors apart.
  void each(const std::function<void(Part&, std::size_t)>& action) {
    for (std::size_t i = 0; i < parts_.size(); ++i) action(parts_[i], 7 * i);
  }

  Ring packed_;
  std::vector<Ring> tensors_;
  std::vector<Part> parts_;
  std::size_t elements_ = 0;
};

/// Ours, the floor and, where there is MPI, one call a tensor and one packed call.
std::vector<Samples> measure(Session& session, Gradients& gradients) {
  Subject* const mpi = session.baseline();
  const auto settle = [&] { session.subject().settle(); };
  std::vector<Contender> contenders = {{[&] { gradients.exchange(); }, settle},
                                       {[&] { gradients.pack(); }, settle}};
  if (mpi != nullptr) {
    contenders.push_back({[&] { gradients.one_call_a_tensor(*mpi); }, settle});
    contenders.push_back({[&] { gradients.one_packed_call(*mpi); }, settle});
    gradients.check(session, contenders[2].call);
    gradients.check(session, contenders[3].call);
  }
  gradients.check(session, contenders[0].call);
  const BenchOptions& options = session.options();
  auto times = take_turns(session.peers(), contenders, options.warmup,
                          options.iterations.value_or(kIterations));
  gradients.check(session, contenders[0].call);
  return times;
}

Json milliseconds(const std::vector<Samples>& times, std::size_t contender) {
  return contender < times.size() ? Json(median(times[contender]) / 1e3) : Json();
}

Json row_of(const GradientList& list, Session& session, const std::vector<Samples>& times) {
  const auto thread_level = session.peers().thread_level();
  const bool compares = times.size() > 2;
  return {{"benchmark", "exchange"},
          {"ranks", session.topology().size},
          {"backend", session.subject().backend()},
          {"iterations", times[0].size()},
          {"model", list.model},
          {"tensors", list.tensors.size()},
          {"bytes", list.elements() * sizeof(float)},
          {"p50_ms", milliseconds(times, 0)},
          {"baseline_ms", milliseconds(times, 2)},
          {"packed_baseline_ms", milliseconds(times, 3)},
          {"floor_ms", milliseconds(times, 1)},
          {"ratio", compares ? Json(median(times[2]) / median(times[0])) : Json()},
          {"thread_level", thread_level ? Json(*thread_level) : Json()},
          {"regime", nullptr}};
}

}  // namespace

void run_exchange(Session& session) {
  Report report = session.report(kColumns);
  report.say("exchange of gradients, f32, " + session.description());
  report.print_titles();
  for (const std::string& model : session.options().models) {
    const GradientList& list = gradient_list(model);
    std::optional<Gradients> gradients;
    session.alike([&] { gradients.emplace(list); });
    report.add(row_of(list, session, measure(session, *gradients)));
  }
  if (session.baseline() != nullptr) {
    const double microseconds = measure_regime(session);
    report.set_everywhere("regime", regime_of(microseconds));
    report.say(regime_text(session, microseconds));
  }
  session.write_json(report);
}

}  // namespace ronde::tool
