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
#include "core/src/base/rank_list.h"

namespace ronde {

/// The stages of one rank's engine (start, loop, end), and the program's requests to end it.
///
/// Thread-safety: every member may be called from any thread.
class EngineLife {
 public:
  /// `error`: why it could not start; null if it has started.
  void mark_started(std::exception_ptr error = nullptr) {
    const std::lock_guard lock(mutex_);
    start_error_ = std::move(error);
    reach(Stage::Started);
  }
  void mark_loop_ended() {
    const std::lock_guard lock(mutex_);
    reach(Stage::LoopEnded);
  }
  void mark_ended() {
    const std::lock_guard lock(mutex_);
    reach(Stage::Ended);
  }
  void set_failure(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
  }
  /// Sets it unless there is one.
  void set_first_failure(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }

  /// Blocks until mark_started() and throws its error; returns false if `deadline` passes first.
  bool wait_started(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    const auto has_started = [this] { return stage_ >= Stage::Started; };
    if (!changed_.wait_until(lock, deadline, has_started)) return false;
    if (start_error_) std::rethrow_exception(start_error_);
    return true;
  }
  /// Blocks until mark_ended(); returns false if `deadline` passes first.
  bool wait_ended(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return stage_ == Stage::Ended; });
  }
  /// Blocks until mark_loop_ended(), for no longer than `limit` unless it is zero.
  void wait_loop_ended(Duration limit) {
    std::unique_lock lock(mutex_);
    const auto has_ended = [this] { return stage_ >= Stage::LoopEnded; };
    if (limit > Duration::zero()) {
      changed_.wait_for(lock, limit, has_ended);
    } else {
      changed_.wait(lock, has_ended);
    }
  }

  bool has_started() const {
    const std::lock_guard lock(mutex_);
    return stage_ >= Stage::Started && !start_error_;
  }
  /// Returns the error of a failed group; null if it has not failed.
  std::exception_ptr failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  /// Records that a call throws that error to the program, unless the library made the call itself.
  void mark_failure_reported() noexcept {
    if (!OwnWorkScope::is_inside()) failure_reported_.store(true);
  }
  bool is_failure_reported() const noexcept { return failure_reported_.load(); }

  /// Requests the shutdown. `report`: for rank 0. `deadline`: when it fails, if ever.
  void shut_down(std::string report, std::optional<TimePoint> deadline) {
    const std::lock_guard lock(mutex_);
    report_ = std::move(report);
    shutdown_deadline_ = deadline;
    shuts_down_.store(true);
  }
  /// Returns that deadline; nothing before the request.
  std::optional<TimePoint> shutdown_deadline() const {
    if (!shuts_down()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    return shutdown_deadline_;
  }
  std::string report() const {
    const std::lock_guard lock(mutex_);
    return report_;
  }
  /// Requests to leave. `why`: for the other ranks; may be empty. The first reason is kept.
  void leave(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (leave_reason_.empty()) leave_reason_ = why;
    leaves_.store(true);
  }
  /// Requests to abort the group. The first text is kept.
  void abort(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (!aborts_.exchange(true)) abort_text_ = text;
  }
  bool shuts_down() const noexcept { return shuts_down_.load(); }
  bool leaves() const noexcept { return leaves_.load(); }
  bool aborts() const noexcept { return aborts_.load(); }

  /// Returns the message to the other ranks when `rank`, this one, leaves, or has aborted.
  /// `pending`: the text of what it waits for.
  FailureMessage departure_of(int rank, const std::string& pending) const {
    const std::lock_guard lock(mutex_);
    if (aborts()) return {rank, rank_name(rank) + " aborted: " + abort_text_};
    const std::string how = shuts_down() ? " left before its ronde::shutdown() was over"
                                         : " left without calling ronde::shutdown()";
    return {rank,
            rank_name(rank) + how + (leave_reason_.empty() ? "" : ": " + leave_reason_) + pending};
  }

 private:
  enum class Stage { Starting, Started, LoopEnded, Ended };

  void reach(Stage stage) {
    stage_ = stage;
    changed_.notify_all();
  }

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
  std::optional<TimePoint> shutdown_deadline_;
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
