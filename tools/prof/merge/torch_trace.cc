// SPDX-License-Identifier: Apache-2.0
// LibTorch's profiler writes wall time in microseconds; newer versions subtract
// "baseTimeNanoseconds" from it.
#include <map>

#include "ronde/error.h"
#include "tools/prof/merge/merge.h"

namespace ronde::prof {
namespace {

constexpr double kNsInUs = 1e3;
constexpr int kPidsOfRank = 1000;
constexpr int kFirstPid = 1'000'000;  // above the ranks, which are pids, too

/// Processes and devices of a trace as numbers that no other trace uses.
class Pids {
 public:
  explicit Pids(int rank) : next_(kFirstPid + rank * kPidsOfRank) {}

  /// True if `pid` is new.
  bool take(Json& pid) {
    const auto [found, is_new] = numbers_.try_emplace(pid.dump(), next_);
    if (is_new) ++next_;
    pid = found->second;
    return is_new;
  }

 private:
  int next_;
  std::map<std::string, int> numbers_;
};

}  // namespace

void add_torch_trace(const TorchTrace& trace, const Clock& clock, TraceWriter& writer) try {
  Json json = parse_json(read_file(trace.path), trace.path);
  if (!json.is_object() || !json.contains("traceEvents")) {
    throw UsageError(trace.path.string() +
                     " is no trace of LibTorch's profiler (ProfilerResult::save), which has "
                     "traceEvents; RecordProfile writes times that begin at 0 and fit no clock");
  }
  const double base_us = json.value("baseTimeNanoseconds", 0.0) / kNsInUs;
  const auto moved = [&](double ts) {
    return clock.on_rank_0(ts + (base_us - clock.wall_minus_monotonic_us));
  };
  const std::string rank = std::to_string(trace.rank);
  Pids pids(trace.rank);
  for (Json& event : json.at("traceEvents")) {
    if (!event.is_object() || !event.contains("ph") || !event.contains("pid")) continue;
    const std::string name = event.value("name", "");
    const bool is_name =
        event.at("ph") == "M" && (name == "process_name" || name == "process_sort_index");
    const Json& pid = event.at("pid");
    const std::string shown = pid.is_string() ? pid.get<std::string>() : pid.dump();
    if (pids.take(event.at("pid"))) {
      writer.name_process(event.at("pid"),
                          "rank " + rank + ": LibTorch, process or device " + shown, trace.rank);
    }
    if (is_name) continue;
    if (const auto ts = event.find("ts"); ts != event.end() && event.at("ph") != "M") {
      *ts = moved(ts->get<double>());
    }
    if (const auto id = event.find("id"); id != event.end()) {
      *id = "torch" + rank + "." + (id->is_string() ? id->get<std::string>() : id->dump());
    }
    writer.add(event);
  }
} catch (const Json::exception& error) {
  throw UsageError(trace.path.string() + " is no trace of LibTorch's profiler: " + error.what());
}

}  // namespace ronde::prof
