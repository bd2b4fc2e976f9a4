// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/src/base/monotonic_clock.h"

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
  TimePoint next() const noexcept { return events_.front().time; }

  /// Adds an event; one that is due already happens now.
  void at(TimePoint time, Action action) {
    events_.push_back({std::max(time, now_), added_++, std::move(action)});
    std::ranges::push_heap(events_, IsLater());
  }

  /// Lets the next event happen; there is one.
  void run_next() {
    std::ranges::pop_heap(events_, IsLater());
    const Event event = std::move(events_.back());
    events_.pop_back();
    now_ = event.time;
    event.action();
  }

 private:
  struct Event {
    TimePoint time;
    std::uint64_t number;
    Action action;
  };
  struct IsLater {
    bool operator()(const Event& left, const Event& right) const noexcept {
      return std::pair(left.time, left.number) > std::pair(right.time, right.number);
    }
  };

  TimePoint now_{};
  std::uint64_t added_ = 0;
  std::vector<Event> events_;
};

}  // namespace ronde
