// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/rank_fibers.h"

#include <algorithm>

namespace ronde {

RankFibers::RankFibers(EventQueue& events, SimulatedNetwork& network, int ranks, Duration wake)
    : events_(events), network_(network), wake_(wake), fibers_(static_cast<std::size_t>(ranks)) {}

void RankFibers::start(int rank, std::function<void()> function, std::function<void()> on_suspend) {
  RankFiber& started = of(rank);
  started.fiber = std::make_unique<Fiber>(std::move(function));
  started.on_suspend = std::move(on_suspend);
  make_due(rank, events_.now());
}

TimePoint RankFibers::now() const noexcept {
  return running_ < 0 ? events_.now() : network_.time(running_) + of(running_).skipped;
}

void RankFibers::catch_up() {
  if (of(running_).is_ending || next_event() > now()) return;
  make_due(running_, now());
  of(running_).fiber->suspend();
}

void RankFibers::sleep(TimePoint deadline) {
  catch_up();
  const bool is_notified = std::exchange(of(running_).is_notified, false);
  if (!is_notified) wait(State::Sleeping, deadline);
}

void RankFibers::pass(TimePoint end) {
  if (running_ < 0) return;
  catch_up();
  const bool is_notified = std::exchange(of(running_).is_poll_notified, false);
  if (!is_notified) wait(State::Polling, end);
}

void RankFibers::wait(State state, TimePoint deadline) {
  const Duration left = deadline - now();
  if (left <= Duration::zero()) return;
  RankFiber& own = of(running_);
  if (own.is_ending) {
    own.skipped += left;
    return;
  }
  own.state = state;
  own.timer = deadline;
  timers_.emplace(deadline, running_);
  own.fiber->suspend();
}

void RankFibers::notify(int rank) {
  RankFiber& notified = of(rank);
  if (notified.state == State::Sleeping) {
    timers_.erase({notified.timer, rank});
    make_due(rank, std::max(now(), network_.time(rank)) + wake_);
  } else {
    notified.is_notified = true;
  }
}

void RankFibers::notify_poll(int rank) {
  RankFiber& notified = of(rank);
  if (notified.state == State::Polling) {
    timers_.erase({notified.timer, rank});
    make_due(rank, now());
  } else {
    notified.is_poll_notified = true;
    notify(rank);
  }
}

void RankFibers::run_next_timer() {
  const auto [time, rank] = *timers_.begin();
  timers_.erase(timers_.begin());
  make_due(rank, of(rank).state == State::Sleeping ? time + wake_ : time);
}

void RankFibers::make_due(int rank, TimePoint time) {
  of(rank).state = State::Due;
  network_.at(time, rank, [this, rank] { resume(rank); });
}

void RankFibers::resume(int rank) {
  RankFiber& resumed = of(rank);
  running_ = rank;
  resumed.fiber->resume();
  running_ = -1;
  if (resumed.fiber->has_returned()) {
    resumed.state = State::Ended;
    resumed.fiber.reset();
  }
  resumed.on_suspend();
}

void RankFibers::end(int rank) {
  RankFiber& ended = of(rank);
  if (ended.state == State::Ended) return;
  ended.is_ending = true;
  if (ended.state != State::Due) timers_.erase({ended.timer, rank});
  resume(rank);
}

TimePoint RankFibers::next_event() const noexcept {
  TimePoint next = TimePoint::max();
  if (!events_.empty()) next = events_.next();
  if (has_timer()) next = std::min(next, next_timer());
  return next;
}

}  // namespace ronde
