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

/// Has SIGUSR2 ask for a dump while one lives: of each world whose recorder looks at one.
class DumpSignal {
 public:
  DumpSignal();
  ~DumpSignal();
  DumpSignal(const DumpSignal&) = delete;
  DumpSignal& operator=(const DumpSignal&) = delete;

  /// How often the signal has come in this process.
  static std::uint64_t count() noexcept;
  /// How often before this was made.
  std::uint64_t came_before() const noexcept { return came_before_; }

 private:
  const std::uint64_t came_before_;
};

/// What RONDE_DUMP_ON_SIGUSR2 asks for: made before the ranks meet, so that the signal does not end
/// one that waits for the others. Null if nothing is asked for.
std::unique_ptr<DumpSignal> wanted_signal(const Config& config);

/// Writes what a rank was doing into RONDE_DUMP, for `ronde prof hang`: once the group has failed,
/// when an operation stalls, and on request. A sink of events only to be asked several times a
/// second; it reads the ring.
///
/// Thread-safety: every member may be called from any thread.
class FlightRecorder final : public EventSink {
 public:
  /// Removes what an earlier run has left. What it is given outlives its use as a sink. `signal`:
  /// null without RONDE_DUMP_ON_SIGUSR2.
  FlightRecorder(const Runtime& runtime, const Logger& log, const DumpSignal* signal = nullptr);

  /// Dumps if there is a reason.
  void take(std::span<const Event> events, std::uint64_t lost) override;

  /// An operation stalls: the next take() dumps.
  void note_stall(const std::vector<StalledOperation>& operations);

  /// `reason`: error, stall, request or signal. Throws Error if it cannot be written.
  void dump(std::string_view reason, const std::string& text);

 private:
  const Runtime& runtime_;
  const Logger& log_;
  const std::string path_;

  // Owned by whoever calls take().
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
