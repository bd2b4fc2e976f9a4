// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/benchmarks/benchmarks.h"

#include <cstring>
#include <ctime>
#include <utility>

#include "ronde/ronde.h"
#include "tools/bench/base/gradient_lists.h"
#include "tools/bench/base/pattern.h"
#include "tools/bench/base/ring.h"

namespace ronde::tool {
namespace {

constexpr int kIterations = 20;

Request sum_of(float* data, std::size_t count, std::string name) {
  Request request;
  request.name = std::move(name);
  request.shape = {static_cast<std::int64_t>(count)};
  request.input = request.output = data;
  return request;
}

double processor_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

/// The gradients of one model on this rank, each in memory of its own, and the ways to sum them.
class Gradients {
 public:
  /// `prepares`: sums are persistent operations.
  Gradients(const GradientList& list, bool prepares) : packed_(list.elements() * sizeof(float)) {
    packed_.split(list.elements() * sizeof(float), 0);
    all_ = reinterpret_cast<float*>(packed_.next());
    for (const std::size_t count : list.tensors) {
      Ring& memory = tensors_.emplace_back(count * sizeof(float));
      memory.split(count * sizeof(float), 0);
      parts_.push_back({reinterpret_cast<float*>(memory.next()),
                        count,
                        elements_,
                        std::string(list.model) + " " + std::to_string(parts_.size()),
                        {}});
      Part& part = parts_.back();
      if (prepares) part.prepared = prepare(sum_of(part.data, part.count, part.name));
      elements_ += count;
    }
  }

  void exchange() {
    std::vector<Work> works;
    works.reserve(parts_.size());
    const double begin = processor_us();
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      works.push_back(part->prepared
                          ? part->prepared.start({.input = part->data, .output = part->data})
                          : submit(sum_of(part->data, part->count, part->name)));
    }
    submitting_.push_back(processor_us() - begin);
    for (const Work& work : works) work.wait();
  }

  /// The processor time of this thread for submitting all of them, by exchange.
  const Samples& submitting() const { return submitting_; }

  void one_call_a_tensor(Subject& mpi) {
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      mpi.run(sum_of(part->data, part->count, {}));
    }
  }

  void one_packed_call(Subject& mpi) {
    pack();
    mpi.run(sum_of(all_, elements_, {}));
    for (const Part& part : parts_) {
      std::memcpy(part.data, all_ + part.offset, part.count * sizeof(float));
    }
  }

  /// Copies every gradient once.
  void pack() {
    for (const Part& part : parts_) {
      std::memcpy(all_ + part.offset, part.data, part.count * sizeof(float));
    }
  }

  /// Calls `sum` with known gradients, checks the result, and leaves zeros.
  void check(Session& session, const std::function<void()>& sum) {
    const Place place{session.topology().rank, session.topology().size};
    for (const Part& part : parts_) {
      fill(DataType::F32, part.data, part.count,
           [&](std::size_t index) { return pattern(place.rank, part.offset + index); });
    }
    sum();
    session.alike([&] {
      for (const Part& part : parts_) {
        const std::string wrong =
            difference(DataType::F32, part.data, part.count,
                       [&](std::size_t index) { return sum_of_ranks(place, part.offset + index); });
        if (!wrong.empty()) throw Error("the sum of gradient " + part.name + " is wrong: " + wrong);
        std::memset(part.data, 0, part.count * sizeof(float));
      }
    });
  }

 private:
  struct Part {
    float* data = nullptr;
    std::size_t count = 0;
    std::size_t offset = 0;  ///< elements before it in the packed buffer
    std::string name;
    PersistentOp prepared;
  };

  Ring packed_;
  float* all_ = nullptr;  ///< the packed buffer
  std::vector<Ring> tensors_;
  std::vector<Part> parts_;
  std::size_t elements_ = 0;
  Samples submitting_;
};

/// Ours, the floor and, where there is MPI, one call a tensor and one packed call.
std::vector<Samples> measure(Session& session, Gradients& gradients) {
  Subject* const mpi = session.baseline();
  const auto quiesce = [&] { session.subject().quiesce(); };
  std::vector<Contender> contenders = {{[&] { gradients.exchange(); }, quiesce},
                                       {[&] { gradients.pack(); }, quiesce}};
  if (mpi != nullptr) {
    contenders.push_back({[&] { gradients.one_call_a_tensor(*mpi); }, quiesce});
    contenders.push_back({[&] { gradients.one_packed_call(*mpi); }, quiesce});
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

Json row_of(const GradientList& list, Session& session, const std::vector<Samples>& times,
            const Samples& submitting) {
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
          {"submit_us", median(submitting)},
          {"prepared", session.options().prepared},
          {"ratio", compares ? Json(median(times[2]) / median(times[0])) : Json()},
          {"thread_level", thread_level ? Json(*thread_level) : Json()},
          {"regime", nullptr}};
}

}  // namespace

void run_exchange(Session& session) {
  Report report = session.report();
  report.say("exchange of gradients, f32, " + session.description());
  report.begin_table({{"model", "model"},
                      {"tensors", "tensors"},
                      {"bytes", "bytes"},
                      {"p50 ms", "p50_ms", 3},
                      {"MPI ms", "baseline_ms", 3},
                      {"packed ms", "packed_baseline_ms", 3},
                      {"memcpy ms", "floor_ms", 3},
                      {"submit us", "submit_us", 1},
                      {"MPI/ours", "ratio", 2}});
  for (const std::string& model : session.options().models) {
    const GradientList& list = gradient_list(model);
    std::optional<Gradients> gradients;
    session.alike([&] { gradients.emplace(list, session.options().prepared); });
    const std::vector<Samples> times = measure(session, *gradients);
    report.add(row_of(list, session, times, gradients->submitting()));
  }
  session.finish(report);
}

}  // namespace ronde::tool
