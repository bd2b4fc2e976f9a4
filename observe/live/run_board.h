// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

#include "ronde/config.h"
#include "ronde/plugin/events.h"

namespace ronde {

/// Memory in which a rank reports its progress to `ronde run`, which reads it also after the rank's
/// death: the file of the variable RONDE_RUN_BOARD.
struct RunBoard {
  static constexpr std::uint32_t kLayout = 1;
  static constexpr const char* kVariable = "RONDE_RUN_BOARD";
  /// The number of a socket to `ronde run`, which a process of an elastic job inherits.
  static constexpr const char* kChannelVariable = "RONDE_RUN_CHANNEL";

  enum State : std::uint32_t { kUnknown, kStarting, kStarted, kLeft, kShutDown };

  std::uint32_t layout = kLayout;
  std::atomic<std::uint32_t> state{kUnknown};
  std::atomic<std::int64_t> steps{0};         ///< since init
  std::atomic<std::int64_t> checkpoint{-1};   ///< step of the last complete one; -1: none
  std::atomic<std::int32_t> failed_rank{-1};  ///< the first one that this rank knows of
};

/// Writes to the board; does nothing without RONDE_RUN_BOARD, or if its file cannot be used.
///
/// Thread-safety: every member may be called from any thread.
class RunReport {
 public:
  explicit RunReport(const EnvironmentLookup& variables);
  ~RunReport();
  RunReport(const RunReport&) = delete;
  RunReport& operator=(const RunReport&) = delete;

  /// Says why there is no board although the variable is set.
  const std::string& problem() const noexcept { return problem_; }

  void note(RunBoard::State state) noexcept;
  /// Records that the group is over for this rank: `failure` is null after a proper shutdown.
  void note_end(bool has_shut_down, const std::exception_ptr& failure) noexcept;
  void note_checkpoint(std::int64_t step) noexcept;
  /// Returns a callback that counts steps and calls `next`, which may be empty, with each event.
  /// This outlives it.
  EventCallback counting_steps(EventCallback next);

 private:
  RunBoard* board_ = nullptr;
  std::string problem_;
};

}  // namespace ronde
