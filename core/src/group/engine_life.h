// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/src/agree/messages.h"
#include "core/src/base/caller.h"
#include "core/src/base/monotonic_clock.h"

namespace ronde {

/// The stages of one rank's engine (start, loop, end), and the program's requests to end it.
///
/// Thread-safety: every member may be called from any thread.
class EngineLife {
 public:
  using Clock = MonotonicClock;

  enum class Stage { Starting, Started, LoopEnded, Ended };

  /// `error`: why it could not start; null if it has started.
  void mark_started(std::exception_ptr error = nullptr);
  void mark_loop_ended() { reach(Stage::LoopEnded); }
  void mark_ended() { reach(Stage::Ended); }
  void set_failure(std::exception_ptr failure);
  /// Sets it unless there is one.
  void set_first_failure(std::exception_ptr failure);

  /// Blocks until mark_started() and throws its error; returns false if `deadline` passes first.
  bool wait_started(Clock::time_point deadline);
  /// Blocks until mark_ended(); returns false if `deadline` passes first.
  bool wait_ended(Clock::time_point deadline);
  /// Blocks until mark_loop_ended(), for no longer than `limit` unless it is zero.
  void wait_loop_ended(Clock::duration limit);

  bool has_started() const;
  /// Returns the error of a failed group; null if it has not failed.
  std::exception_ptr failure() const;
  /// Records that a call throws that error to the program, unless the library made the call itself.
  void mark_failure_reported() noexcept {
    if (!OwnWorkScope::is_inside()) failure_reported_.store(true);
  }
  bool is_failure_reported() const noexcept { return failure_reported_.load(); }

  /// Requests the shutdown. `report`: for rank 0. `deadline`: when it fails, if ever.
  void shut_down(std::string report, std::optional<Clock::time_point> deadline);
  /// Returns that deadline; nothing before the request.
  std::optional<Clock::time_point> shutdown_deadline() const;
  std::string report() const;
  /// Requests to leave. `why`: for the other ranks; may be empty. The first reason is kept.
  void leave(const std::string& why);
  /// Requests to abort the group. The first text is kept.
  void abort(const std::string& text);
  bool shuts_down() const noexcept { return shuts_down_.load(); }
  bool leaves() const noexcept { return leaves_.load(); }
  bool aborts() const noexcept { return aborts_.load(); }

  /// Returns the message to the other ranks when `rank`, this one, leaves. `pending`: the text of
  /// what it waits for.
  FailureMessage departure_of(int rank, const std::string& pending) const;
  /// Returns the message to the other ranks when `rank`, this one, aborts.
  FailureMessage abortion_of(int rank) const;

 private:
  void reach(Stage stage);

  std::atomic<bool> shuts_down_{false};
  std::atomic<bool> leaves_{false};
  std::atomic<bool> aborts_{false};
  std::atomic<bool> failure_reported_{false};

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::Starting;
  std::exception_ptr start_error_;
  std::exception_ptr failure_;
  std::string report_;
  std::optional<Clock::time_point> shutdown_deadline_;
  std::string leave_reason_;
  std::string abort_text_;
};

/// How far the ranks have agreed to stop, as this rank knows it.
///
/// Note [Two agreements to stop]
/// The last decision means that no rank submits anything more, but operations may still be in
/// progress, and a rank that dies now would leave the others in them. So every rank reports when it
/// has finished, and closes only when all have; a peer that is lost before has died. The same
/// happens if other ranks still wait for one that has shut down: rank 0 makes no more decisions,
/// agreed operations finish, and then the group fails.
///
/// Thread-safety: none; owned by whoever runs the loop.
struct StopAgreement {
  /// When shutdown() was called: on this rank; on rank 0, by any rank.
  std::optional<TimePoint> shutdown_since = {};
  bool agreed = false;                           ///< the last decision has been applied
  std::optional<FailureMessage> departure = {};  ///< why the group fails once all have finished
  bool reported_finished = false;                ///< this rank has reported that it runs nothing
  bool all_finished = false;                     ///< no rank runs anything
  /// This rank and those below it that have finished, to be sent.
  FinishedMessage newly_finished = {};
  std::map<int, std::string> reports = {};  ///< on rank 0: by rank that has finished

  void add_finished(int rank, std::string report) {
    newly_finished.ranks.push_back(rank);
    newly_finished.reports.push_back(std::move(report));
  }
  bool must_report_finished(bool busy) const noexcept {
    return agreed && !reported_finished && !busy;
  }
};

/// How much longer a rank waits than its parent, in shutdown and for stalled operations, as a rank
/// nearer to rank 0 knows better which rank is late.
inline constexpr std::chrono::seconds kHeadStart{2};

/// For texts.
inline constexpr const char* kShutdownLimit =
    " within the limit of a rank in shutdown() (RONDE_SHUTDOWN_TIMEOUT_S, or that of its call)";

}  // namespace ronde
