// SPDX-License-Identifier: Apache-2.0
#include "observe/flight_recorder.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/src/base/text.h"
#include "observe/dump.h"

namespace ronde {
namespace {

std::atomic<std::uint64_t> dumps_wanted{0};
std::mutex signal_mutex;
int signals = 0;                 // that live; guarded by signal_mutex
struct sigaction former_action;  // the same

void want_dump(int) {
  dumps_wanted.fetch_add(1, std::memory_order_relaxed);
}

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
  // A dump of an earlier run would be taken for one of this run.
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
  if (failure_dumped_) return;  // later events would hide what led to the failure
  if (const std::exception_ptr failure = runtime_.failure()) {
    failure_dumped_ = write_.run([&] { dump("error", exception_text(failure)); });
    return;
  }
  if (!stall.empty()) write_.run([&] { dump("stall", stall); });
  if (signal_ == nullptr) return;
  const std::uint64_t signals_so_far = DumpSignal::count();
  if (std::exchange(signals_seen_, signals_so_far) == signals_so_far) return;
  // The user waits for the dump, so that each failure is logged.
  RepeatedWrite(log_, "RONDE_DUMP").run([&] { dump("signal", "SIGUSR2"); });
}

void FlightRecorder::dump(std::string_view reason, const std::string& text) {
  const std::lock_guard lock(dump_mutex_);
  const Topology& topology = runtime_.topology();
  RankSnapshot snapshot{.world = runtime_.world_name(),
                        .rank = topology.rank,
                        .ranks = topology.size,
                        .counters = runtime_.stats()};
  snapshot.events = runtime_.recent_events(&snapshot.lost_events);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  snapshot.at_ns = std::chrono::nanoseconds(now).count();
  for (const ProcessSet set : runtime_.process_sets()) {
    snapshot.ranks_of_sets[set.id] = runtime_.ranks_of(set);
  }
  write_file(path_, to_text(to_json(snapshot, reason, text)));
}

}  // namespace ronde
