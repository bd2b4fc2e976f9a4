// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/src/base/counter.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/events/event_log.h"
#include "core/src/op/in_flight.h"
#include "core/src/op/submission.h"
#include "core/src/op/work_state.h"

namespace ronde {

/// An agreement of the ranks on what they run next, beside negotiation: a FrozenSchedule. The mutex
/// of the SubmissionQueue guards it, so that what is submitted has one order for both.
class Agreement {
 public:
  virtual ~Agreement() = default;

  enum class Intake {
    Deviates,  ///< it does not belong here: it is negotiated
    Taken,
    Due  ///< taken, and the loop must run
  };
  /// Takes the submission over, unless it Deviates. The mutex is held.
  virtual Intake put(Submission& submission) = 0;

  /// Ends the delay of `work`: a thread waits for it (`waits`), or asks whether it is done. Returns
  /// whether the loop must run. The mutex is held.
  virtual bool expedite(const WorkState& work, bool waits) = 0;

  /// Returns when the loop must run: a past time if at once, nullopt if there is nothing. The mutex
  /// is held.
  virtual std::optional<TimePoint> due() const = 0;
};

/// Carries submissions from any thread to the loop, and wakes it for them.
///
/// Note [The way of a submission]
/// The queue offers every submission to the frozen schedule, and gathers the others for
/// negotiation: they are due together once the gather time has passed since the first, the bytes
/// fill a fusion buffer, or a thread waits for a result. From either a submission goes to the
/// executor, when all ranks have agreed. When a schedule freezes or thaws, operations that are not
/// agreed return here, ahead of later ones, and are routed anew.
///
/// Thread-safety: every member may be called from any thread.
class SubmissionQueue {
 public:
  struct Counters {
    Counter submitted, submitted_bytes, wakes, flushes;
  };

  /// `wake` makes the loop run. `events` outlives the queue. The rest is as for gather().
  SubmissionQueue(std::chrono::nanoseconds gather_time, std::uint64_t gather_bytes,
                  std::function<void()> wake, EventLog& events);

  /// Adds an operation, with its key by NameRegistry::reserve(). Throws as reserve(), and
  /// throws the reason of close(). Wakes the loop if it must run now, unless the caller waits.
  void push(Submission submission);

  /// Guards the agreement.
  std::mutex& mutex() const noexcept { return mutex_; }

  /// Offers operations of all ranks to `agreement` first; null: to none. It outlives that.
  void ask_first(Agreement* agreement);

  /// Calls `change`, which changes the agreement, with the mutex held. Routes submitted operations
  /// anew: those that it returns, which were taken before and are due at once, then those that wait
  /// here. If it throws, nothing has moved.
  void hand_over(const std::function<std::vector<Submission>()>& change);

  /// Makes everything gathered due at once for a thread that waits, and calls
  /// Agreement::expedite(). Returns whether the loop must run; wakes nobody.
  bool expedite(const WorkState& work, bool waits) noexcept;

  /// Records that a thread has waited: the next operation may depend on the result of an earlier
  /// one.
  void record_wait() noexcept { waited_.store(true, std::memory_order_relaxed); }

  /// Returns when the loop must run, as Agreement::due().
  std::optional<TimePoint> due() const;

  /// Gathers for `time`, or up to `bytes`, from now on.
  void gather(std::chrono::nanoseconds time, std::uint64_t bytes);
  /// Removes and returns the operations to negotiate, if they are due by `now`.
  std::list<Submission> take(TimePoint now);

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
  std::optional<TimePoint> gathered_due() const;
  std::list<Submission> take_gathered();
  void wake_locked();

  EventLog& events_;
  Counters counters_;
  std::atomic<bool> waited_{false};

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::function<void()> wake_;
  std::chrono::nanoseconds gather_time_;
  std::uint64_t gather_bytes_;
  std::list<Submission> gathered_;  ///< a list, as they are large and of any number
  TimePoint first_gathered_;
  std::uint64_t bytes_ = 0;  ///< of gathered_
  bool is_urgent_ = false;   ///< gathered_ is due at once
  Agreement* first_asked_ = nullptr;
  std::uint64_t submitted_ = 0;
  NameRegistry names_;
  MemoryInFlight memory_;
  std::exception_ptr closed_;
};

// What happens to the operations of this rank. The loop alone ends them.

/// Writes EventKind::Submitted for the operation or each one of the group, once. `then`: events
/// that happen at the same time.
void record_submitted(EventLog& events, Submission& submission,
                      ThenAlso then = ThenAlso::Nothing) noexcept;
/// Writes that one operation was announced at `time`.
void record_announced(EventLog& events, const Submission& operation, TimePoint time) noexcept;

/// Appends an agreed operation, or the members of a group one by one, to `agreed`. `average_over`:
/// as Response::average_over.
void add_agreed(std::vector<Submission>& agreed, Submission submission, const SharedRows& rows,
                bool contributed, std::uint64_t digest, int average_over = 0);

/// Ends the operation, or each one of the group: with success if `error` is null.
void complete(SubmissionQueue& queue, Submission& submission, std::exception_ptr error,
              bool contributed);

/// Frees the name and the memory of an operation whose result a device will have at `event`, and
/// publishes the event; the owner of the buffers stays.
void mark_queued(SubmissionQueue& queue, Submission& submission,
                 std::shared_ptr<const DeviceEvent> event);

/// Returns "4 operations: allreduce 'a', allreduce 'b', allreduce 'c' and 1 more", for the log.
std::string text_of(const std::vector<Submission>& submissions);

}  // namespace ronde
