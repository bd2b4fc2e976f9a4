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
#include "core/src/op/agreement.h"
#include "core/src/op/memory_in_flight.h"
#include "core/src/op/name_registry.h"
#include "core/src/op/submission.h"

namespace ronde {

/// Carries submissions from any thread to the agreement that has them, and wakes the loop for it.
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
  using TimePoint = Negotiated::TimePoint;

  struct Counters {
    Counter submitted, submitted_bytes, wakes, flushes;
  };

  /// `wake` makes the loop look. `events` outlives the queue. The times are those of Negotiated.
  SubmissionQueue(std::chrono::nanoseconds gather_time, std::uint64_t gather_bytes,
                  std::function<void()> wake, EventLog& events);

  /// Adds an operation, with its key by NameRegistry::reserve(). Throws what that throws, and the
  /// reason of close(). Wakes the loop if it must look now, unless the caller waits.
  void push(Submission submission);

  /// Guards the agreements.
  std::mutex& mutex() const noexcept { return mutex_; }

  /// Has `agreement` asked first for operations of all ranks; null: none. It outlives that.
  void ask_first(Agreement* agreement);

  /// Lets `change` change the agreements, with the mutex held. Puts submitted operations again:
  /// those that it returns, which were taken before and are due at once, then those that wait here.
  /// If it throws, nothing has moved.
  void hand_over(const std::function<std::vector<Submission>()>& change);

  /// As Agreement::expedite(), of all; false: the loop need not look. Wakes nobody.
  bool expedite(const WorkState& work, bool waits) noexcept;

  /// The next operation may depend on the result of an earlier one.
  void note_wait() noexcept { waited_.store(true, std::memory_order_relaxed); }

  /// As Agreement::due(), of all.
  std::optional<TimePoint> due() const;

  /// As Negotiated::gather().
  void gather(std::chrono::nanoseconds time, std::uint64_t bytes);
  /// Takes what has to be negotiated, if it is due by `now`.
  std::vector<Submission> take(TimePoint now);

  /// The operation has ended, or a device works on it: its name and its memory may be used again.
  void release(Submission& submission);

  /// As in NameRegistry.
  /// @{
  NameUse* prepare(const SpecPtr& spec);
  void unprepare(const SpecPtr& spec);
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

  /// Makes the loop look, whatever is here.
  void wake() noexcept;

  /// Never calls the wake function again once this returns.
  void detach();

  const Counters& counters() const noexcept { return counters_; }
  EventLog& events() const noexcept { return events_; }

 private:
  void enter(Submission& submission);
  Agreement::Intake route(Submission& submission);
  bool expedite_locked(const WorkState& work, bool waits);
  void wake_locked();

  EventLog& events_;
  Counters counters_;
  std::atomic<bool> waited_{false};

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::function<void()> wake_;
  Negotiated negotiated_;
  Agreement* first_asked_ = nullptr;
  std::uint64_t submitted_ = 0;
  NameRegistry names_;
  MemoryInFlight memory_;
  std::exception_ptr closed_;
};

}  // namespace ronde
