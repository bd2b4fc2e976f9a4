// SPDX-License-Identifier: Apache-2.0
#include "observe/flight_recorder.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "core/src/base/json.h"
#include "core/src/base/system.h"
#include "core/src/base/text.h"
#include "observe/base/figures_json.h"
#include "ronde/build_info.h"

namespace ronde {
namespace {

using Json = nlohmann::ordered_json;

std::atomic<std::uint64_t> dumps_wanted{0};
std::mutex signal_mutex;
int signals = 0;                 // that live; guarded by signal_mutex
struct sigaction former_action;  // the same

void want_dump(int) {
  dumps_wanted.fetch_add(1, std::memory_order_relaxed);
}

std::string wall_time() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[sizeof "2026-01-01T00:00:00Z"];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

bool is_message(Collective collective) {
  return collective == Collective::Send || collective == Collective::Recv;
}

/// What the events tell of operations and threads.
class Picture {
 public:
  void take(const Event& event) {
    const double time = us_of(event.time_ns);
    switch (event.kind) {
      case EventKind::Submitted:
        order_.push_back(event.operation);
        operations_[event.operation] = {{"number", event.operation},
                                        {"kind", to_string(event.collective)},
                                        {"name", event.text},
                                        {"set", event.set},
                                        {"bytes", event.bytes}};
        if (is_message(event.collective)) operations_[event.operation]["peer"] = event.rank;
        return set_state(event.operation, "submitted", time);
      case EventKind::Announced:
        return set_state(event.operation, "announced", time);
      case EventKind::Agreed:
        set_state(event.operation, "agreed", time);
        buckets_[{event.set, event.bucket}].push_back(event.operation);
        if (Json* const operation = find(event.operation)) {
          (*operation)["last_rank"] = event.rank;
          (*operation)["bucket"] = event.bucket;
        }
        return;
      case EventKind::Started:
        for (const std::uint64_t number : buckets_[{event.set, event.bucket}]) {
          set_state(number, "started", time);
        }
        return;
      case EventKind::Finished:
        buckets_.erase({event.set, event.bucket});
        return;
      case EventKind::Completed:
        return set_state(event.operation, "completed", time);
      case EventKind::Failed:
        return set_state(event.operation, "failed", time, "completed");
      case EventKind::Abandoned:
        failed_ = true;
        if (Json* const operation = find(event.operation)) (*operation)["abandoned_us"] = time;
        return;
      case EventKind::WaitBegun:
        return begin(event.thread, "wait", name_of(event.operation), event);
      case EventKind::SpanBegun:
        return begin(event.thread, "span", event.text, event);
      case EventKind::WaitEnded:
      case EventKind::SpanEnded:
        return end(event);
      default:
        return;
    }
  }

  Json operations(const Runtime& runtime) const {
    std::map<std::uint32_t, std::vector<int>> ranks;
    for (const ProcessSet set : runtime.process_sets()) ranks[set.id] = runtime.ranks_of(set);
    Json result = Json::array();
    for (const std::uint64_t number : order_) {
      Json& operation = result.emplace_back(operations_.at(number));
      operation["ranks"] = ranks[operation.at("set").get<std::uint32_t>()];
      if (operation.contains("peer")) {
        operation["ranks"] = {runtime.topology().rank, operation.at("peer")};
      }
    }
    return result;
  }

  /// The innermost thing that each thread does.
  Json threads() const {
    Json result = Json::array();
    for (const auto& [thread, doings] : threads_) {
      const Doing now =
          doings.open.empty() ? Doing{"program", "", 0, doings.last_us} : doings.open.back();
      result.push_back({{"thread", thread},
                        {"doing", now.kind},
                        {"what", now.what},
                        {"since_us", now.since_us}});
    }
    return result;
  }

 private:
  struct Doing {
    std::string kind, what;
    std::uint64_t number = 0;
    double since_us = 0;
  };
  struct Thread {
    std::vector<Doing> open;
    double last_us = 0;  ///< the end of what it did last
  };

  Json* find(std::uint64_t number) {
    const auto found = operations_.find(number);
    return found == operations_.end() ? nullptr : &found->second;
  }

  void set_state(std::uint64_t number, const std::string& state, double time,
                 const std::string& stamp = {}) {
    Json* const operation = find(number);
    if (operation == nullptr) return;
    (*operation)["state"] = state;
    (*operation)[(stamp.empty() ? state : stamp) + "_us"] = time;
  }

  std::string name_of(std::uint64_t number) {
    const Json* const operation = find(number);
    if (operation == nullptr) return "an operation";
    return operation->at("kind").get<std::string>() + " '" +
           operation->at("name").get<std::string>() + "'";
  }

  void begin(std::uint16_t thread, const char* kind, std::string what, const Event& event) {
    threads_[thread].open.push_back({kind, std::move(what), event.operation, us_of(event.time_ns)});
  }

  /// A span may end on another thread than that where it began.
  void end(const Event& event) {
    if (failed_) return;  // the failure ended it: what it waited for is what matters
    const std::string kind = event.kind == EventKind::WaitEnded ? "wait" : "span";
    threads_[event.thread].last_us = us_of(event.time_ns);
    for (auto& [thread, doings] : threads_) {
      if (kind == "wait" && thread != event.thread) continue;
      std::erase_if(doings.open, [&](const Doing& doing) {
        return doing.kind == kind && doing.number == event.operation;
      });
    }
  }

  bool failed_ = false;  ///< the group has
  std::map<std::uint64_t, Json> operations_;
  std::vector<std::uint64_t> order_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<std::uint64_t>> buckets_;
  std::map<std::uint16_t, Thread> threads_;
};

}  // namespace

DumpSignal::DumpSignal() : came_before_(count()) {
  const std::lock_guard lock(signal_mutex);
  if (signals++ > 0) return;
  struct sigaction action {};
  action.sa_handler = want_dump;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, &former_action);
}

DumpSignal::~DumpSignal() {
  const std::lock_guard lock(signal_mutex);
  if (--signals == 0) sigaction(SIGUSR2, &former_action, nullptr);
}

std::unique_ptr<DumpSignal> wanted_signal(const Config& config) {
  const bool wanted = config.dump_on_sigusr2 && !config.dump.empty();
  return wanted ? std::make_unique<DumpSignal>() : nullptr;
}

std::uint64_t DumpSignal::count() noexcept {
  return dumps_wanted.load(std::memory_order_relaxed);
}

FlightRecorder::FlightRecorder(const Runtime& runtime, const Logger& log, const DumpSignal* signal)
    : runtime_(runtime),
      log_(log),
      path_(runtime.config().dump + "/rank" + std::to_string(runtime.topology().rank) + ".json"),
      signal_(signal),
      signals_seen_(signal == nullptr ? 0 : signal->came_before()),
      write_(log, "RONDE_DUMP") {
  // That of an earlier run would tell of this one.
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void FlightRecorder::note_stall(const std::vector<StalledOperation>& operations) {
  const std::lock_guard lock(mutex_);
  stall_.clear();
  for (const StalledOperation& operation : operations) {
    stall_ += (stall_.empty() ? "" : "; ") + operation.text + " stalls";
  }
}

void FlightRecorder::take(std::span<const Event>, std::uint64_t) {
  std::string stall;
  {
    const std::lock_guard lock(mutex_);
    stall.swap(stall_);
  }
  if (failure_dumped_) return;  // what comes after it would hide what led to it
  if (const std::exception_ptr failure = runtime_.failure()) {
    failure_dumped_ = write_.run([&] { dump("error", exception_text(failure)); });
    return;
  }
  if (!stall.empty()) write_.run([&] { dump("stall", stall); });
  if (signal_ == nullptr) return;
  const std::uint64_t signals_so_far = DumpSignal::count();
  if (std::exchange(signals_seen_, signals_so_far) == signals_so_far) return;
  // Somebody waits for it.
  RepeatedWrite(log_, "RONDE_DUMP").run([&] { dump("signal", "SIGUSR2"); });
}

void FlightRecorder::dump(std::string_view reason, const std::string& text) {
  const std::lock_guard lock(dump_mutex_);
  const Topology& topology = runtime_.topology();
  std::uint64_t lost = 0;
  Picture picture;
  for (const Event& event : runtime_.recent_events(&lost)) picture.take(event);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const Json dump = {{"ronde_dump", 1},
                     {"version", build_info::kVersion},
                     {"world", runtime_.world_name()},
                     {"rank", topology.rank},
                     {"ranks", topology.size},
                     {"host", host_name()},
                     {"pid", getpid()},
                     {"reason", reason},
                     {"text", text},
                     {"at_us", us_of(std::chrono::nanoseconds(now).count())},
                     {"wall", wall_time()},
                     {"threads", picture.threads()},
                     {"operations", picture.operations(runtime_)},
                     {"lost_events", lost},
                     {"counters", counters_json(runtime_.stats())}};
  write_file(path_, to_text(dump));
}

}  // namespace ronde
