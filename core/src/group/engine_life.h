// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>

#include "core/src/agree/messages.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/base/thread_scope.h"

namespace ronde {

/// The stages of one rank's engine (start, loop, end), and how the program wants it to end.
///
/// Thread-safety: every member may be called from any thread.
class EngineLife {
 public:
  using Clock = MonotonicClock;

  /// `error`: what kept it from starting; null if nothing did.
  void mark_started(std::exception_ptr error = nullptr);
  void mark_loop_ended() { mark(loop_ended_); }
  void mark_ended() { mark(ended_); }
  /// The group is dead.
  void set_failure(std::exception_ptr failure);

  /// Blocks until mark_started(), at most until `deadline` (then false); throws its error.
  bool wait_started(Clock::time_point deadline);
  /// Blocks until mark_ended(), at most until `deadline`.
  bool wait_ended(Clock::time_point deadline);
  /// Blocks until mark_loop_ended(), for no longer than `limit` unless that is zero.
  void wait_loop_ended(Clock::duration limit);

  bool has_started() const;
  /// The error of a dead group; null while it lives.
  std::exception_ptr failure() const;
  /// A call has thrown that error, and the program gets it unless this is the library's own work.
  void mark_failure_reported() noexcept {
    if (!OwnWorkScope::is_inside()) failure_reported_.store(true);
  }
  bool is_failure_reported() const noexcept { return failure_reported_.load(); }

  /// `report`: for rank 0.
  void shut_down(std::string report);
  std::string report() const;
  /// `why`, for the others; empty if it is not known. The first reason stays.
  void leave(const std::string& why);
  /// The first text stays.
  void abort(const std::string& text);
  bool shuts_down() const noexcept { return shuts_down_.load(); }
  bool leaves() const noexcept { return leaves_.load(); }
  bool aborts() const noexcept { return aborts_.load(); }

  /// The message to the others once `rank`, this one, leaves. `pending`: the text of what it waits
  /// for.
  FailureMessage departure_of(int rank, const std::string& pending) const;
  /// The same once it aborts.
  FailureMessage abortion_of(int rank) const;

 private:
  void mark(bool& milestone);

  std::atomic<bool> shuts_down_{false};
  std::atomic<bool> leaves_{false};
  std::atomic<bool> aborts_{false};
  std::atomic<bool> failure_reported_{false};

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  bool loop_ended_ = false;
  bool ended_ = false;
  std::exception_ptr start_error_;
  std::exception_ptr failure_;
  std::string report_;
  std::string leave_reason_;
  std::string abort_text_;
};

}  // namespace ronde
