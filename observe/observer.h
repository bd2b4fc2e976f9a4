// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "observe/flight_recorder.h"
#include "observe/live/metrics.h"
#include "observe/live/top_socket.h"
#include "observe/timeline/timeline.h"
#include "ronde/log.h"
#include "ronde/runtime.h"

namespace ronde {

/// Connects the writers that RONDE_PROFILE, RONDE_TIMELINE, RONDE_DUMP, RONDE_METRICS and RONDE_TOP
/// ask for to a runtime. A writer's failure is logged and does not stop the program.
///
/// Thread-safety: every member may be called from any thread, but construction and destruction.
class Observer {
 public:
  /// `runtime` outlives this. `signal`: as wanted_signal() says. `read_gpu`: of this rank; may be
  /// empty.
  explicit Observer(Runtime& runtime, std::unique_ptr<DumpSignal> signal = nullptr,
                    ReadGpu read_gpu = {});
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  /// Calls Runtime::shutdown() and writes what is due at the end.
  void shutdown(std::optional<std::chrono::nanoseconds> limit = {});
  /// Writes what this rank knows after the group has failed, or as this rank leaves it. Once.
  void end() noexcept;

  void note_stall(const std::vector<StalledOperation>& operations);

  /// Starts a timeline; `path` as RONDE_TIMELINE. Throws UsageError if one is being written, Error
  /// if the file cannot be made.
  void start_timeline(const std::string& path);
  /// Ends the timeline. Throws UsageError if there is none.
  void stop_timeline();
  /// Writes a dump. Throws UsageError without RONDE_DUMP.
  void dump();

 private:
  void write_profile(const std::vector<std::string>& reports);
  void write_own_profile();
  void merge_timelines();
  bool end_timeline();
  bool joins_timelines();
  void warn_of_idle_settings() const;
  void remove_old_profiles() const;
  void start_metrics();
  void end_live() noexcept;

  template <typename Action>
  void guarded(const char* what, const Action& action) const noexcept;

  Runtime& runtime_;
  const Logger log_;
  const std::unique_ptr<DumpSignal> signal_;
  const ReadGpu read_gpu_;
  std::shared_ptr<FlightRecorder> recorder_;

  std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<Timeline> timeline_;
  bool timeline_is_whole_ = false;          ///< it has all events since init
  std::set<std::string> merged_timelines_;  ///< files in which rank 0 joins those of all ranks
  std::shared_ptr<MetricsWriter> metrics_;
  std::shared_ptr<TopSocket> top_;
  bool ended_ = false;
};

}  // namespace ronde
