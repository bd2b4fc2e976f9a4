// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/src/base/monotonic_clock.h"
#include "core/src/sim/event_queue.h"
#include "core/src/sim/fiber.h"
#include "core/src/sim/network.h"

namespace ronde {

/// Runs one function for each rank of a simulation, in a fiber.
///
/// Note [Local time]
/// A function runs at the time of an event, and its costs are charged to the processor of its rank,
/// so its local time (SimulatedNetwork::time) is ahead of the queue's. Before it looks for messages
/// it waits until the queue has reached that time (catch_up), so that all that was sent before is
/// there. What ranks write to the memory of their host is visible at once: to peers up to a round's
/// cost too early.
///
/// Thread-safety: none.
class RankFibers final : public VirtualClock {
 public:
  /// `wake`: until a rank that sleeps runs.
  RankFibers(EventQueue& events, SimulatedNetwork& network, int ranks, Duration wake);
  RankFibers(const RankFibers&) = delete;
  RankFibers& operator=(const RankFibers&) = delete;

  /// Runs `function` from now on. `on_suspend`: called each time that it is suspended, and once it
  /// has returned.
  void start(int rank, std::function<void()> function, std::function<void()> on_suspend);

  /// The local time of the function that runs; where none does, that of the queue.
  TimePoint now() const noexcept override;

  // For the function that runs.

  void charge(Duration cost) { network_.charge(running_, cost); }
  void catch_up();
  /// Sleeps until the next notify(), or until `deadline`; not at all after one that was not
  /// forgotten.
  void sleep(TimePoint deadline);
  void forget_notice() { of(running_).is_notified = false; }
  /// Polls until `end`, or until notify_poll().
  void pass(TimePoint end) override;

  // For any code.

  void notify(int rank);
  void notify_poll(int rank);
  /// Its function is not suspended any more, and ends before this returns. Its rank was cut.
  void end(int rank);
  bool has_ended(int rank) const { return of(rank).state == State::Ended; }

  /// The deadlines of functions that sleep or poll. They are no events, as nobody else acts.
  /// @{
  bool has_timer() const noexcept { return !timers_.empty(); }
  TimePoint next_timer() const noexcept { return timers_.begin()->first; }
  void run_next_timer();
  /// @}

 private:
  enum class State : std::uint8_t {
    Due,  ///< runs, or will at a time in the queue
    Sleeping,
    Polling,
    Ended,
  };
  struct RankFiber {
    std::unique_ptr<Fiber> fiber;
    std::function<void()> on_suspend;
    State state = State::Due;
    bool is_notified = false;
    bool is_poll_notified = false;
    bool is_ending = false;
    TimePoint timer{};
    Duration skipped{0};  ///< waits while it ends
  };

  RankFiber& of(int rank) { return fibers_[static_cast<std::size_t>(rank)]; }
  const RankFiber& of(int rank) const { return fibers_[static_cast<std::size_t>(rank)]; }
  void wait(State state, TimePoint deadline);
  void make_due(int rank, TimePoint time);
  void resume(int rank);
  TimePoint next_event() const noexcept;

  EventQueue& events_;
  SimulatedNetwork& network_;
  const Duration wake_;
  std::vector<RankFiber> fibers_;
  std::set<std::pair<TimePoint, int>> timers_;
  int running_ = -1;
};

}  // namespace ronde
