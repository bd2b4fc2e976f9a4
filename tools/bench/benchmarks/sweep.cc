// SPDX-License-Identifier: Apache-2.0
// One collective over a range of sizes.
#include <algorithm>
#include <optional>
#include <utility>

#include "ronde/ronde.h"
#include "tools/bench/base/pattern.h"
#include "tools/bench/base/ring.h"
#include "tools/bench/benchmarks/benchmarks.h"
#include "tools/bench/session/session.h"

namespace ronde::tool {
namespace {

/// Below this, each call starts with the engine asleep, as a program's would that computes between
/// two small operations.
constexpr std::size_t kSleepsBelow = std::size_t{64} << 10;

std::vector<Column> columns(bool compares) {
  std::vector<Column> all = {{"bytes", "bytes"},           {"p50 us", "p50_us", 2},
                             {"p99 us", "p99_us", 2},      {"min us", "min_us", 2},
                             {"alg GB/s", "algbw_gbs", 3}, {"bus GB/s", "busbw_gbs", 3}};
  if (compares) {
    all.push_back({"MPI p50 us", "baseline_p50_us", 2});
    all.push_back({"MPI/ours", "ratio", 2});
  }
  return all;
}

/// One size of one collective.
class Case {
 public:
  Case(const CollectiveBenchmark& benchmark, Session& session, Ring& memory, std::size_t count)
      : benchmark_(benchmark), session_(session), memory_(memory), count_(count) {
    const auto ranks = static_cast<std::size_t>(session.topology().size);
    place_ = {session.topology().rank, session.topology().size, count / ranks};
    name_ = "bench " + std::string(benchmark.name) + " " + std::to_string(bytes());
    memory_.split(slot_bytes(), std::max(session.rotate_bytes(), slot_bytes()));
    if (session.options().prepared) prepared_ = prepare(request(memory_.next()));
  }

  std::size_t bytes() const { return count_ * element(); }

  /// Writes the buffer anew, with what it holds, as a program writes its gradients before they are
  /// reduced: else its lines would lie where the contender before left them, which for an MPI that
  /// copies between processes is the peer's cache. Memory to walk through is in no cache when its
  /// turn comes, and stays so.
  void renew() {
    std::byte* const slot = memory_.only();
    if (slot == nullptr || memory_.pages().device() != Device{}) return;
    for (std::size_t at = 0; at < slot_bytes(); at += kLine) {
      volatile std::byte& first_of_line = slot[at];
      first_of_line = first_of_line;
    }
  }

  /// Does the operation in the next slot, whatever that holds.
  void call(Subject& subject) {
    std::byte* const slot = memory_.next();
    if (!prepared_ || &subject != &session_.subject()) return subject.run(request(slot));
    prepared_
        .start({.input = slot,
                .output = slot + output_offset(),
                .stream = memory_.pages().stream(),
                .caller_waits = true})
        .wait();
  }

  /// Does it with known inputs, checks the result, and leaves zeros: sums in place would else grow
  /// from call to call, to infinity. Collective; throws on every rank if one of them is wrong.
  void check(Subject& subject) {
    std::byte* const slot = memory_.next();
    Request request = this->request(slot);
    auto* const output = static_cast<std::byte*>(request.output);
    std::vector<std::byte> image(slot_bytes(), kPoison);
    fill(session_.options().dtype, image.data(), elements(benchmark_.input),
         [this](std::size_t index) { return pattern(place_.rank, index); });
    memory_.pages().copy(slot, image.data(), image.size());
    subject.run(std::move(request));
    verify(subject, output,
           [this](std::size_t index) { return benchmark_.expected(place_, index); });
    memory_.pages().zero(slot, slot_bytes());
  }

  /// Checks that the last call, which found zeros, left zeros.
  void check_last(const Subject& subject) {
    verify(subject, memory_.last() + output_offset(), [](std::size_t) { return 0; });
  }

 private:
  static constexpr std::byte kPoison{0x55};
  static constexpr std::size_t kLine = 64;

  std::size_t element() const { return size_of(session_.options().dtype); }

  std::size_t elements(Extent extent) const {
    if (extent == Extent::Nothing) return 0;
    return extent == Extent::Share ? place_.share : count_;
  }

  /// Input, and behind it the output where it is not the same.
  std::size_t output_offset() const {
    if (benchmark_.in_place) return 0;
    return (elements(benchmark_.input) * element() + kLine - 1) / kLine * kLine;
  }
  std::size_t slot_bytes() const {
    return output_offset() + elements(benchmark_.output) * element();
  }

  Request request(std::byte* slot) const {
    Request request;
    request.kind = benchmark_.kind;
    if (benchmark_.kind == Collective::Barrier) return request;
    request.name = name_;
    request.dtype = session_.options().dtype;
    request.wire_dtype = session_.options().wire_dtype;
    request.shape = {static_cast<std::int64_t>(elements(benchmark_.input))};
    request.device = memory_.pages().device();
    request.stream = memory_.pages().stream();
    request.input = slot;
    request.output = slot + output_offset();
    return request;
  }

  void verify(const Subject& subject, const std::byte* output, const ElementRule& rule) {
    session_.alike([&] {
      const DataType dtype = session_.options().dtype;
      const std::size_t count = elements(benchmark_.output);
      std::vector<std::byte> seen(count * element());
      memory_.pages().copy(seen.data(), output, seen.size());
      const std::string wrong = difference(dtype, seen.data(), count, rule);
      if (wrong.empty()) return;
      throw Error("the result of " + std::string(benchmark_.name) + " (" + size_text(bytes()) +
                  ", " + std::string(to_string(dtype)) + ", by " + subject.backend() +
                  ") is wrong: " + wrong);
    });
  }

  const CollectiveBenchmark& benchmark_;
  Session& session_;
  Ring& memory_;
  const std::size_t count_;
  Place place_;
  std::string name_;
  PersistentOp prepared_;
};

/// Elements of the whole for every size, each once. A whole that is shared out is rounded up to
/// equal shares.
std::vector<std::size_t> counts_of(const CollectiveBenchmark& benchmark, const Session& session) {
  if (benchmark.kind == Collective::Barrier) return {0};
  const BenchOptions& options = session.options();
  const bool is_shared = benchmark.input == Extent::Share || benchmark.output == Extent::Share ||
                         benchmark.kind == Collective::Alltoall;
  const std::size_t grain = is_shared ? static_cast<std::size_t>(session.topology().size) : 1;
  const std::size_t grain_bytes = grain * size_of(options.dtype);
  std::vector<std::size_t> counts;
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= 2) {
    const std::size_t count = (bytes + grain_bytes - 1) / grain_bytes * grain;
    if (counts.empty() || counts.back() != count) counts.push_back(count);
    if (bytes > options.max_bytes / 2) break;
  }
  return counts;
}

Json bandwidth(std::size_t bytes, double microseconds, double factor) {
  if (bytes == 0) return nullptr;
  return factor * static_cast<double>(bytes) / (microseconds * 1e3);
}

Json row_of(const CollectiveBenchmark& benchmark, Session& session, std::size_t bytes,
            const std::vector<Samples>& times) {
  const BenchOptions& options = session.options();
  const double p50 = median(times[0]);
  const double factor =
      benchmark.bus_factor != nullptr ? benchmark.bus_factor(session.topology().size) : 0.0;
  const bool compares = times.size() > 1;
  const double plain = compares ? median(times[1]) : 0.0;
  const auto thread_level = session.peers().thread_level();
  return {{"benchmark", benchmark.name},
          {"ranks", session.topology().size},
          {"backend", session.subject().backend()},
          {"raw", options.raw},
          {"prepared", options.prepared},
          {"device", to_string(options.device)},
          {"dtype", to_string(options.dtype)},
          {"wire_dtype", to_string(options.wire_dtype.value_or(options.dtype))},
          {"rotate_bytes", session.rotate_bytes()},
          {"iterations", times[0].size()},
          {"bytes", bytes},
          {"p50_us", p50},
          {"p99_us", percentile(times[0], 0.99)},
          {"min_us", percentile(times[0], 0.0)},
          {"algbw_gbs", bandwidth(bytes, p50, 1.0)},
          {"busbw_gbs", bandwidth(bytes, p50, factor)},
          {"baseline_p50_us", compares ? Json(plain) : Json()},
          {"ratio", compares ? Json(plain / p50) : Json()},
          {"thread_level", thread_level ? Json(*thread_level) : Json()},
          {"regime", nullptr}};
}

/// Times one size. Ours first in the result, then the baseline, if there is one.
std::vector<Samples> measure(const CollectiveBenchmark& benchmark, Session& session, Ring& memory,
                             std::size_t count, CostModel* model) {
  Case one_case(benchmark, session, memory, count);
  Subject& ours = session.subject();
  const auto renew = [&one_case] { one_case.renew(); };
  const auto quiesce = [&] {
    one_case.renew();
    ours.quiesce();
  };
  std::vector<Contender> contenders = {{[&] { one_case.call(ours); }, renew}};
  if (one_case.bytes() < kSleepsBelow) contenders[0].prepare = quiesce;
  const bool has_result = benchmark.output != Extent::Nothing;
  if (has_result) one_case.check(ours);
  if (session.baseline() != nullptr) {
    contenders.push_back({[&] { one_case.call(*session.baseline()); }, quiesce});
    if (has_result) one_case.check(*session.baseline());
  }
  const BenchOptions& options = session.options();
  auto times = take_turns(session.peers(), contenders, options.warmup,
                          iterations_for(options, one_case.bytes()));
  if (model != nullptr) model->watch([&] { one_case.call(ours); });
  if (has_result) {
    one_case.check_last(ours);
    one_case.check(ours);
  }
  return times;
}

/// Room for the slots of the largest size, or to walk through.
std::size_t memory_for(const CollectiveBenchmark& benchmark, std::size_t largest_bytes,
                       std::size_t rotate_bytes) {
  constexpr std::size_t kSlack = 4096;
  return std::max((benchmark.in_place ? 1 : 2) * largest_bytes, rotate_bytes) + kSlack;
}

}  // namespace

void run_collective(const CollectiveBenchmark& benchmark, Session& session) {
  const BenchOptions& options = session.options();
  Report report = session.report();
  const std::string wire =
      options.wire_dtype ? " as " + std::string(to_string(*options.wire_dtype)) : "";
  report.say(std::string(benchmark.name) + ", " + std::string(to_string(options.dtype)) + wire +
             ", " + session.description());
  report.begin_table(columns(session.baseline() != nullptr));
  const std::vector<std::size_t> counts = counts_of(benchmark, session);
  std::optional<Ring> memory;
  session.alike([&] {
    memory.emplace(session.make_pages(
        memory_for(benchmark, counts.back() * size_of(options.dtype), session.rotate_bytes())));
  });
  std::optional<CostModel> model;
  if (options.models_costs) model.emplace(session, benchmark.kind);
  for (const std::size_t count : counts) {
    report.add(row_of(benchmark, session, count * size_of(options.dtype),
                      measure(benchmark, session, *memory, count, model ? &*model : nullptr)));
  }
  if (model) model->add_to(report);
  session.finish(report);
}

}  // namespace ronde::tool
