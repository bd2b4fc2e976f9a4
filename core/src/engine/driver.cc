// SPDX-License-Identifier: Apache-2.0
// The loop's own thread runs cycles and sleeps between them. A caller that waits takes the loop
// over while that thread sleeps, runs cycles as long as something happens, and wakes the thread if
// it leaves something to do: Note [Who runs the loop].
#include "core/src/engine/driver.h"

#include <algorithm>

#include "core/src/submit/engine_scope.h"

namespace ronde {
namespace {

/// A caller that waits looks for messages in one of so many rounds while a schedule is frozen.
constexpr unsigned kRoundsWithoutMessages = 16;
/// In a round in which nothing happened it makes figures of so many events: less than it takes to
/// hear from another core.
constexpr std::uint64_t kEventsOfRound = 2;

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

void Driver::start(Board* board, FrozenSchedule* schedule, bool outnumbers_cores) {
  board_ = board;
  schedule_ = schedule;
  outnumbers_cores_ = outnumbers_cores;
}

void Driver::run(std::unique_lock<std::mutex>& engine) {
  is_live_ = true;
  try {
    do {
      sleep(engine);
      if (failure_) std::rethrow_exception(failure_);
    } while (loop_.cycle());
  } catch (...) {
    is_live_ = false;
    throw;
  }
  is_live_ = false;
}

void Driver::sleep(std::unique_lock<std::mutex>& engine) {
  const auto tended = failure_ ? std::nullopt : operations_.tend();
  // Published before the last look: whoever adds something afterwards wakes this thread.
  asleep_.store(true);
  say_asleep();
  operations_.look_again();
  sleeps_until_ = failure_ ? TimePoint() : loop_.next_event();
  if (tended) sleeps_until_ = std::min(sleeps_until_, TimePoint::clock::now() + *tended);
  if (sleeps_until_ > TimePoint::clock::now()) {
    if (const std::optional<int> descriptor = operations_.prepare_sleep()) {
      counters_.sleeps.add();
      driver_.store({});
      const Unlocked unlocked(engine);
      waits_.store(true);  // and the engine is free
      queue_.events().read_figures();
      tree_.transport().wait(sleeps_until_, *descriptor);
      waits_.store(false);
    }
  }
  driver_.store(std::this_thread::get_id());
  if (board_ != nullptr) board_->set_asleep(Board::Sleep::None);
  asleep_.store(false);
}

void Driver::say_asleep() noexcept {
  if (board_ == nullptr) return;
  const bool waiting = operations_.busy() || (schedule_ != nullptr && schedule_->is_expedited());
  board_->set_asleep(waiting ? Board::Sleep::Waiting : Board::Sleep::Idle);
}

void Driver::help(const WorkState& work, Stage goal, TimePoint now, TimePoint deadline) noexcept {
  queue_.flush();
  if (schedule_ != nullptr) schedule_->wait_for(work);
  // A callback that waits finds the loop in use by its own thread.
  if (!is_this_thread()) {
    const std::unique_lock engine(engine_, std::try_to_lock);
    if (engine && is_live_) {
      drive(work, goal, now, deadline);
      return;
    }
  }
  queue_.wake();
}

void Driver::drive(const WorkState& work, Stage goal, TimePoint now, TimePoint deadline) {
  const EngineScope scope;
  counters_.driven_by_callers.add();
  driver_.store(std::this_thread::get_id());
  if (board_ != nullptr) board_->set_asleep(Board::Sleep::None);
  try {
    look_on(work, goal, now, deadline);
    // Published before the last look, as in sleep().
    say_asleep();
    operations_.look_again();
  } catch (...) {
    failure_ = std::current_exception();
  }
  // The thread may sleep without the descriptor, or its signal has been used up by the polls here.
  const bool is_deaf = operations_.sleep_on_descriptor();
  if (failure_ || is_deaf || loop_.next_event() < sleeps_until_) queue_.wake();
  driver_.store({});
}

void Driver::look_on(const WorkState& work, Stage goal, TimePoint now, TimePoint deadline) {
  std::uint64_t seen = progress();
  TimePoint give_up = now + operations_.patience();
  for (unsigned round = 0; !failure_ && work.stage() < goal; ++round) {
    // Looking for messages costs a system call; a frozen schedule needs none.
    const bool looks_for_messages = schedule_ == nullptr || !schedule_->is_frozen() ||
                                    round % kRoundsWithoutMessages == kRoundsWithoutMessages - 1;
    if (!looks_for_messages) {
      loop_.follow();
    } else if (!loop_.cycle()) {
      return;
    }
    now = TimePoint::clock::now();
    const std::uint64_t reached = progress();
    if (reached != seen) {
      give_up = now + operations_.patience();
    } else {
      queue_.events().read_figures(kEventsOfRound);
    }
    seen = reached;
    if (now >= std::min(give_up, deadline)) return;
    if (outnumbers_cores_) std::this_thread::yield();
  }
}

/// Changes whenever something happens.
std::uint64_t Driver::progress() const {
  return counters_.messages.get() + counters_.decisions.get() + operations_.progress();
}

}  // namespace ronde
