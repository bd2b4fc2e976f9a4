// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "observe/base/write_file.h"
#include "ronde/config.h"
#include "ronde/log.h"
#include "ronde/plugin/events.h"
#include "ronde/runtime.h"

namespace ronde {

/// Counts SIGUSR2 while one lives; each recorder that has one polls the count.
class DumpSignal {
 public:
  DumpSignal();
  ~DumpSignal();
  DumpSignal(const DumpSignal&) = delete;
  DumpSignal& operator=(const DumpSignal&) = delete;

  /// The number of signals in this process.
  static std::uint64_t count() noexcept;
  /// The number of signals before this was made.
  std::uint64_t came_before() const noexcept { return came_before_; }

 private:
  const std::uint64_t came_before_;
};

/// Makes the handler for RONDE_DUMP_ON_SIGUSR2; null without that. Call it before the ranks meet,
/// so that the signal does not end one that waits for the others.
std::unique_ptr<DumpSignal> wanted_signal(const Config& config);

/// Writes what a rank was doing into RONDE_DUMP, for `ronde prof hang`: once the group has failed,
/// when an operation stalls, and on request. It is a sink of events only to be called several times
/// a second, and reads the ring.
///
/// Thread-safety: every member may be called from any thread.
class FlightRecorder final : public EventSink {
 public:
  /// Removes the dump of an earlier run. The references outlive its use as a sink. `signal`: null
  /// without RONDE_DUMP_ON_SIGUSR2.
  FlightRecorder(const Runtime& runtime, const Logger& log, const DumpSignal* signal = nullptr);

  /// Dumps if the group has failed, an operation stalls, or a signal has come.
  void take(std::span<const Event> events, std::uint64_t lost) override;

  /// Has the next take() dump because of these operations.
  void note_stall(const std::vector<StalledOperation>& operations);

  /// Dumps now. Throws Error if the file cannot be written.
  void dump(std::string_view reason, const std::string& text);

 private:
  const Runtime& runtime_;
  const Logger& log_;
  const std::string path_;

  // Owned by the thread that calls take().
  const DumpSignal* const signal_;
  std::uint64_t signals_seen_;
  RepeatedWrite write_;
  bool failure_dumped_ = false;

  std::mutex dump_mutex_;  ///< one dump at a time
  std::mutex mutex_;
  // Guarded by mutex_.
  std::string stall_;
};

}  // namespace ronde
