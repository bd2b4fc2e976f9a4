// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "core/src/engine/coordinator.h"
#include "core/src/group/control_tree.h"
#include "core/src/schedule/frozen_schedule.h"
#include "core/src/submit/work_state.h"
#include "ronde/plugin/board.h"

namespace ronde {

/// Runs the loop on the right thread, and lets it sleep.
///
/// Note [Who runs the loop]
/// The loop has a thread of its own, which sleeps while there is nothing to do. Passing an
/// operation to it and being woken by it costs more than a small operation itself, so a caller that
/// waits runs the loop itself (help()) as long as operations make progress, and leaves the thread
/// asleep. Whoever runs the loop holds engine_; the thread releases it while it sleeps. A failure
/// that a caller meets is kept for the thread, which is woken to end the group.
///
/// Thread-safety: start(), take() and run() are for the loop's own thread; the other members may be
/// called from any thread.
class Driver {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  Driver(Coordinator& loop, const ControlTree& tree, SubmissionQueue& queue,
         EngineCounters& counters)
      : loop_(loop), tree_(tree), queue_(queue), counters_(counters) {}

  /// Before take(). `board`, `schedule`: null if there is none.
  void start(Board* board, FrozenSchedule* schedule, bool outnumbers_cores);
  /// Locks the engine for its thread, until the end.
  [[nodiscard]] std::unique_lock<std::mutex> take() { return std::unique_lock(engine_); }
  /// Runs the loop to its end; rethrows its failure, also one on a caller's thread.
  void run(std::unique_lock<std::mutex>& engine);

  /// WaitHelper::help().
  void help(const WorkState& work, Stage goal, TimePoint now, TimePoint deadline) noexcept;

  /// The loop's thread has to be woken to see anything new.
  bool wants_wake() const noexcept { return asleep_.load(); }
  /// It is asleep.
  bool asleep() const noexcept { return waits_.load(); }
  bool is_this_thread() const noexcept { return driver_.load() == std::this_thread::get_id(); }

 private:
  void sleep(std::unique_lock<std::mutex>& engine);
  void drive(const WorkState& work, Stage goal, TimePoint now, TimePoint deadline);
  void look_on(const WorkState& work, Stage goal, TimePoint now, TimePoint deadline);
  void say_asleep() noexcept;
  std::uint64_t progress() const;

  Coordinator& loop_;
  const ControlTree& tree_;
  SubmissionQueue& queue_;
  EngineCounters& counters_;
  RunningOperations& operations_ = loop_.operations();

  // Constant once start() has returned.
  Board* board_ = nullptr;
  FrozenSchedule* schedule_ = nullptr;
  bool outnumbers_cores_ = false;

  // Guarded by engine_.
  std::mutex engine_;
  bool is_live_ = false;        ///< the loop may be run
  std::exception_ptr failure_;  ///< met by a caller that ran it
  TimePoint sleeps_until_{};    ///< the thread does

  std::atomic<std::thread::id> driver_{};  ///< who runs the loop
  std::atomic<bool> asleep_{false};
  std::atomic<bool> waits_{false};
};

}  // namespace ronde
