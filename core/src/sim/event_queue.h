// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "core/src/base/monotonic_clock.h"
#include "core/src/sim/pool.h"

namespace ronde {

/// Events of a simulation, in the order of their virtual time; those of one time in the order in
/// which they were added.
///
/// Thread-safety: none.
class EventQueue {
 public:
  using Action = std::function<void()>;

  /// Returns the time of the event that happens, or has happened last.
  TimePoint now() const noexcept { return now_; }
  bool empty() const noexcept { return events_.empty(); }
  /// Returns the time of the next event; there is one.
  TimePoint next() const noexcept { return events_.top().time; }

  /// Adds an event; one that is due already happens now.
  void at(TimePoint time, Action action) {
    events_.push({std::max(time, now_), added_++, actions_.add(std::move(action))});
  }

  /// Lets the next event happen; there is one.
  void run_next() {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    actions_.take(event.action)();
  }

 private:
  /// Its action lies apart, so that the queue moves little.
  struct Event {
    TimePoint time{};
    std::uint64_t number = 0;
    Pool<Action>::Index action = 0;

    bool operator>(const Event& other) const noexcept {
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  TimePoint now_{};
  std::uint64_t added_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Pool<Action> actions_;
};

}  // namespace ronde
