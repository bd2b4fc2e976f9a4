// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  bool empty() const noexcept { return heap_.empty(); }
  /// Returns the time of the next event; there is one.
  TimePoint next() const noexcept { return heap_.front().time; }

  /// Adds an event; one that is due already happens now.
  void at(TimePoint time, Action action) {
    heap_.emplace_back();
    rise(heap_.size() - 1, {std::max(time, now_), added_++, actions_.add(std::move(action))});
  }

  /// Lets the next event happen; there is one.
  void run_next() {
    const Event event = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(last);
    now_ = event.time;
    actions_.take(event.action)();
  }

 private:
  /// Its action lies apart, so that the heap moves little.
  struct Event {
    TimePoint time{};
    std::uint64_t number = 0;
    Pool<Action>::Index action = 0;

    bool is_before(const Event& other) const noexcept {
      return time != other.time ? time < other.time : number < other.number;
    }
  };

  static constexpr std::size_t kChildren = 4;  ///< half as many levels as two would need

  /// Puts `event` at the free place `at`, or above.
  void rise(std::size_t at, const Event& event) {
    while (at > 0) {
      const std::size_t parent = (at - 1) / kChildren;
      if (!event.is_before(heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = event;
  }

  /// Puts `event` at the top, which is free, or below.
  void sink(const Event& event) {
    std::size_t at = 0;
    for (;;) {
      const std::size_t first = kChildren * at + 1;
      if (first >= heap_.size()) break;
      std::size_t least = first;
      const std::size_t end = std::min(first + kChildren, heap_.size());
      for (std::size_t child = first + 1; child < end; ++child) {
        if (heap_[child].is_before(heap_[least])) least = child;
      }
      if (!heap_[least].is_before(event)) break;
      heap_[at] = heap_[least];
      at = least;
    }
    heap_[at] = event;
  }

  TimePoint now_{};
  std::uint64_t added_ = 0;
  std::vector<Event> heap_;
  Pool<Action> actions_;
};

}  // namespace ronde
