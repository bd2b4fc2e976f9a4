// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/src/base/counter.h"
#include "core/src/events/event_log.h"
#include "core/src/schedule/frozen_schedule.h"
#include "core/src/submit/name_registry.h"
#include "core/src/submit/submission.h"

namespace ronde {

/// Carries submissions from any thread to the coordinator, and decides when enough are gathered:
/// the gather time has passed since the first, the bytes fill a fusion buffer, or somebody waits
/// for a result.
///
/// Note [The way of a submission]
/// Every submission comes from here: it goes to the frozen schedule if it fits there, and otherwise
/// to negotiation, once enough are gathered; from either it goes to the executor, when all ranks
/// have agreed. What has not been agreed on when a schedule freezes or thaws returns here, ahead of
/// what came later, and takes the way that is right from then on.
///
/// Thread-safety: every member may be called from any thread.
class SubmissionQueue {
 public:
  using Clock = std::chrono::steady_clock;

  struct Counters {
    Counter submitted, submitted_bytes, wakes, flushes;
  };

  /// `wake` makes the coordinator look at the queue. `events` outlives the queue.
  SubmissionQueue(std::chrono::nanoseconds gather_time, std::uint64_t gather_bytes,
                  std::function<void()> wake, EventLog& events);

  /// Adds an operation, with its key by NameRegistry::reserve(). Throws what that throws, and the
  /// reason of close(). Wakes the coordinator if it must look now, unless the caller waits.
  void push(Submission submission);

  /// Gathers so long, or so much, from now on.
  void gather(std::chrono::nanoseconds time, std::uint64_t bytes);

  /// The next operation may depend on the result of an earlier one.
  void note_wait() noexcept { waited_.store(true, std::memory_order_relaxed); }

  /// Asks `schedule` first from now on; null: no longer. It outlives the queue's use of it.
  void use(FrozenSchedule* schedule);

  /// Freezes the schedule in use, and puts back what negotiation had of it until now.
  void freeze(FrozenSchedule::Plan plan, std::vector<Submission> earlier);

  /// Takes back what was taken before, for the schedule or due at once.
  void put_back(std::vector<Submission> earlier);

  /// Makes everything in the queue due at once, as somebody waits. Wakes nobody.
  void flush() noexcept;

  /// The time when the queue is due: a past time if at once, nullopt if it is empty.
  std::optional<Clock::time_point> due() const;

  /// Takes all, in the order of push().
  std::vector<Submission> drain();

  /// As in NameRegistry.
  /// @{
  void release(std::uint32_t set, const std::string& key);
  void continue_numbers(std::uint32_t set, std::uint64_t next);
  std::uint64_t joins(std::uint32_t set) const;
  void open_set(std::uint32_t set);
  std::vector<std::string> close_set(std::uint32_t set);
  void forget_set(std::uint32_t set);
  /// @}

  /// Throws the reason of close().
  void expect_open() const;

  /// Every later push() throws `reason`. The first reason stays.
  void close(std::exception_ptr reason);

  /// Makes the coordinator look, whatever is here.
  void wake() noexcept;

  /// Never calls the wake function again once this returns.
  void detach();

  const Counters& counters() const noexcept { return counters_; }
  EventLog& events() const noexcept { return events_; }

 private:
  void enter(Submission& submission);
  FrozenSchedule::Intake route(Submission& submission);
  void put_back_locked(std::vector<Submission> earlier);
  void wake_locked();

  EventLog& events_;
  Counters counters_;
  std::atomic<bool> waited_{false};

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::chrono::nanoseconds gather_time_;
  std::uint64_t gather_bytes_;
  std::function<void()> wake_;
  std::vector<Submission> waiting_;
  Clock::time_point first_;
  std::uint64_t bytes_ = 0;
  bool urgent_ = false;
  std::uint64_t submitted_ = 0;
  FrozenSchedule* schedule_ = nullptr;
  NameRegistry names_;
  std::exception_ptr closed_;
};

}  // namespace ronde
