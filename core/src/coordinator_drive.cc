// SPDX-License-Identifier: Apache-2.0
// Who runs the loop, and when it sleeps: Note [Who runs the loop] in coordinator.h.
#include <algorithm>
#include <thread>

#include "coordinator.h"
#include "engine_scope.h"
#include "exception_text.h"

namespace ronde {
namespace {

/// How long a caller that waits looks on without anything happening before it blocks.
constexpr std::chrono::microseconds kPatience{50};
/// The same where a peer may need this core to get on.
constexpr std::chrono::microseconds kPatienceWhereCoresAreFew{5};
/// How often a caller that waits looks for messages while a schedule is frozen.
constexpr unsigned kRoundsWithoutMessages = 16;

/// Gives a lock up for a scope.
class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
};

}  // namespace

void Coordinator::live() noexcept {
  const EngineScope scope;
  std::unique_lock engine(engine_);
  is_live_ = true;
  try {
    do {
      sleep(engine);
    } while (cycle());
    note_loop_ended();
    stop();
  } catch (const GroupFailure& seen) {
    note_loop_ended();
    die(seen);
  } catch (...) {
    note_loop_ended();
    const int rank = tree_.rank();
    die({{rank, "rank " + std::to_string(rank) + " failed: " + exception_text(), false}});
  }
}

void Coordinator::note_loop_ended() noexcept {
  is_live_ = false;
  const std::lock_guard lock(mutex_);
  loop_ended_ = true;
  changed_.notify_all();
}

void Coordinator::sleep(std::unique_lock<std::mutex>& engine) {
  // First said, then looked: whoever adds something afterwards wakes this thread.
  asleep_.store(true);
  say_asleep(true);
  look_again();
  sleeps_until_ = next_event();
  if (sleeps_until_ > Clock::now()) {
    counters_.sleeps.add();
    driver_.store({});
    const Unlocked unlocked(engine);
    waits_.store(true);  // and the engine is free
    tree_.transport().wait(sleeps_until_);
    waits_.store(false);
  }
  driver_.store(std::this_thread::get_id());
  say_asleep(false);
  asleep_.store(false);
}

void Coordinator::say_asleep(bool asleep) {
  if (!board_) return;
  const bool waiting = busy() || (schedule_ && schedule_->is_roused());
  const Board::Sleep sleep = waiting ? Board::Sleep::Waiting : Board::Sleep::Idle;
  board_->set_asleep(asleep ? sleep : Board::Sleep::None);
}

void Coordinator::rouse(const WorkState& work) noexcept {
  if (uses_schedule_.load(std::memory_order_acquire) && schedule_->rouse(work)) queue_->wake();
}

bool Coordinator::may_sleep_in_operation() const {
  return board_ && std::all_of(running_.begin(), running_.end(),
                               [](const SetEngine* set) { return set->executor->may_sleep(); });
}

bool Coordinator::may_pause() const {
  return std::all_of(running_.begin(), running_.end(), [this](const SetEngine* set) {
    const bool is_rung = board_ && set->executor->may_sleep();
    return !set->busy() || is_rung || set->executor->may_pause();
  });
}

/// An operation that may sleep is polled once more after that was said, and hot again if it got on.
void Coordinator::look_again() {
  if (!busy() || !may_sleep_in_operation()) return;
  const std::uint64_t before = progress();
  for (SetEngine* set : running_) {
    if (set->busy()) set->executor->poll();
  }
  if (progress() != before) hot_until_ = Clock::now() + patience();
}

void Coordinator::help(const WorkState& work, Stage goal, TimePoint deadline) noexcept {
  queue_->flush();
  if (uses_schedule_.load(std::memory_order_acquire)) schedule_->wait_for(work);
  // A callback that waits finds the loop in use by its own thread.
  if (!is_loop_of_this_thread()) {
    const std::unique_lock engine(engine_, std::try_to_lock);
    if (engine && is_live_) {
      drive(work, goal, deadline);
      return;
    }
  }
  queue_->wake();
}

void Coordinator::drive(const WorkState& work, Stage goal, TimePoint deadline) {
  const EngineScope scope;
  counters_.driven_by_callers.add();
  driver_.store(std::this_thread::get_id());
  say_asleep(false);
  try {
    look_on(work, goal, deadline);
    // As in sleep(): first said, then looked.
    say_asleep(true);
    look_again();
  } catch (...) {
    driver_failure_ = std::current_exception();
  }
  if (driver_failure_ || next_event() < sleeps_until_) queue_->wake();
  driver_.store({});
}

void Coordinator::look_on(const WorkState& work, Stage goal, TimePoint deadline) {
  std::uint64_t seen = progress();
  TimePoint give_up = Clock::now() + patience();
  for (unsigned round = 0; !driver_failure_ && work.stage() < goal; ++round) {
    // Looking for messages costs a system call; a frozen schedule needs none.
    const bool looks_for_messages = !schedule_ || !schedule_->is_frozen() ||
                                    round % kRoundsWithoutMessages == kRoundsWithoutMessages - 1;
    if (!looks_for_messages) {
      follow_schedule();
      advance_operations();
    } else if (!cycle()) {
      return;
    }
    const TimePoint now = Clock::now();
    const std::uint64_t reached = progress();
    if (reached != seen) give_up = now + patience();
    seen = reached;
    if (now >= std::min(give_up, deadline)) return;
    if (outnumbers_cores_) std::this_thread::yield();
  }
}

/// How long nothing may happen before a thread that looks on goes to sleep.
Coordinator::Clock::duration Coordinator::patience() const {
  return outnumbers_cores_ ? kPatienceWhereCoresAreFew : kPatience;
}

/// Changes whenever something happens.
std::uint64_t Coordinator::progress() const {
  std::uint64_t progress = counters_.messages.get() + counters_.decisions.get();
  for (const SetEngine* set : running_) progress += set->executor->progress();
  return progress;
}

}  // namespace ronde
