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
#include <vector>

#include "core/src/base/counter.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/events/event_log.h"
#include "core/src/op/agreement.h"
#include "core/src/op/memory_in_flight.h"
#include "core/src/op/name_registry.h"
#include "core/src/op/submission.h"

namespace ronde {

/// Gathers submissions for negotiation: they are due together once the gather time has passed since
/// the first, the bytes fill a fusion buffer, or a thread waits for a result.
///
/// Thread-safety: none, the mutex of SubmissionQueue guards it.
class Negotiated final : public Agreement {
 public:
  Negotiated(std::chrono::nanoseconds time, std::uint64_t bytes) { gather(time, bytes); }

  /// Gathers for `time`, or up to `bytes`, from now on.
  void gather(std::chrono::nanoseconds time, std::uint64_t bytes) noexcept {
    time_ = time;
    most_bytes_ = bytes;
  }

  Intake put(Submission& submission) override;
  /// Makes everything due at once for a thread that waits; does nothing for one that asks.
  bool expedite(const WorkState& work, bool waits) override;
  /// Makes everything due at once.
  void mark_urgent() noexcept { is_urgent_ = true; }

  std::optional<TimePoint> due() const override;
  /// Removes and returns all, in the order of put().
  std::vector<Submission> take();
  const std::vector<Submission>& waiting() const noexcept { return waiting_; }

 private:
  std::chrono::nanoseconds time_{};
  std::uint64_t most_bytes_ = 0;
  std::vector<Submission> waiting_;
  TimePoint first_;
  std::uint64_t bytes_ = 0;
  bool is_urgent_ = false;
};

/// Carries submissions from any thread to the agreement that has them, and wakes the loop for it.
///
/// Note [The way of a submission]
/// The queue offers every submission to the frozen schedule, and gives the others to negotiation
/// once enough are gathered; from either it goes to the executor, when all ranks have agreed. When
/// a schedule freezes or thaws, operations that are not agreed return here, ahead of later ones,
/// and are routed anew.
///
/// Thread-safety: every member may be called from any thread.
class SubmissionQueue {
 public:
  struct Counters {
    Counter submitted, submitted_bytes, wakes, flushes;
  };

  /// `wake` makes the loop run. `events` outlives the queue. The times are those of Negotiated.
  SubmissionQueue(std::chrono::nanoseconds gather_time, std::uint64_t gather_bytes,
                  std::function<void()> wake, EventLog& events);

  /// Adds an operation, with its key by NameRegistry::reserve(). Throws as reserve(), and
  /// throws the reason of close(). Wakes the loop if it must run now, unless the caller waits.
  void push(Submission submission);

  /// Guards the agreements.
  std::mutex& mutex() const noexcept { return mutex_; }

  /// Offers operations of all ranks to `agreement` first; null: to none. It outlives that.
  void ask_first(Agreement* agreement);

  /// Calls `change`, which changes the agreements, with the mutex held. Routes submitted operations
  /// anew: those that it returns, which were taken before and are due at once, then those that wait
  /// here. If it throws, nothing has moved.
  void hand_over(const std::function<std::vector<Submission>()>& change);

  /// Agreement::expedite() of all agreements. Wakes nobody.
  bool expedite(const WorkState& work, bool waits) noexcept;

  /// Records that a thread has waited: the next operation may depend on the result of an earlier
  /// one.
  void record_wait() noexcept { waited_.store(true, std::memory_order_relaxed); }

  /// Agreement::due() of all agreements: the earliest.
  std::optional<TimePoint> due() const;

  /// As Negotiated::gather().
  void gather(std::chrono::nanoseconds time, std::uint64_t bytes);
  /// Removes and returns the operations to negotiate, if they are due by `now`.
  std::vector<Submission> take(TimePoint now);

  /// Makes the name and the memory of an operation available again: it has ended, or a device works
  /// on it.
  void release(Submission& submission);

  /// The names of its operations, locked until the statement ends.
  struct LockedNames {
    std::unique_lock<std::mutex> lock;
    NameRegistry& names;
    NameRegistry* operator->() const noexcept { return &names; }
  };
  LockedNames names() { return {std::unique_lock(mutex_), names_}; }

  /// Throws the reason of close().
  void expect_open() const;

  /// Makes every later push() throw `reason`. The first reason stays.
  void close(std::exception_ptr reason);

  /// Makes the loop run, whatever is here.
  void wake() noexcept;

  /// Drops the wake function, which is not called again once this returns.
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

// How operations of this rank end. Both are called by the loop.

/// Ends the operation, or each one of the group: with success if `error` is null.
void complete(SubmissionQueue& queue, Submission& submission, std::exception_ptr error,
              bool contributed);

/// Frees the name and the memory of an operation whose result a device will have at `event`, and
/// publishes the event; the owner of the buffers stays.
void mark_queued(SubmissionQueue& queue, Submission& submission,
                 std::shared_ptr<const DeviceEvent> event);

}  // namespace ronde
