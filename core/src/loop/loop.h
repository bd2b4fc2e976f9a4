// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "core/src/base/monotonic_clock.h"
#include "core/src/group/control_tree.h"
#include "core/src/loop/control_plane.h"
#include "core/src/op/work_state.h"
#include "ronde/backend.h"
#include "ronde/plugin/board.h"

namespace ronde {

/// The loop of one rank: its rounds (docs/protocol.md), how long it polls, and how it sleeps. It
/// throws GroupFailure where the group cannot go on.
///
/// Note [Who runs the loop]
/// The loop has a thread of its own, which sleeps while there is nothing to do. Passing an
/// operation to it and being woken by it costs more than a small operation itself, so a caller that
/// waits runs the loop itself (help()) as long as operations make progress, and leaves the thread
/// asleep. Whoever runs the loop holds engine_; the thread releases it while it sleeps. A failure
/// that a caller sees is stored for the thread, which is woken to end the group.
///
/// Thread-safety: start(), lock(), run() and step() are for the loop's own thread; the other
/// members may be called from any thread.
class Loop {
 public:
  /// The references outlive this.
  Loop(ControlPlane& control, const ControlTree& tree, SubmissionQueue& queue)
      : control_(control), tree_(tree), queue_(queue) {}

  /// To be called before lock(). `board`: null if there is none; ranks of this host wake each other
  /// by it. `outnumbers_cores`: not all ranks of this host can run at once.
  void start(Board* board, bool outnumbers_cores);
  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(engine_); }
  /// Runs the loop to its end; rethrows its failure, also one on a caller's thread.
  void run(std::unique_lock<std::mutex>& engine);
  /// Runs one round, which begins `now`; reads the clock again before it polls operations. Returns
  /// false if it was the last one.
  bool step(TimePoint now);

  /// As WaitHelper::help(): the caller runs the loop as long as there is progress, leaves the rest
  /// to the loop's thread, and blocks.
  void help(WorkState& work, Stage goal, TimePoint deadline) noexcept;

  /// Wakes the loop's thread if it has to be woken to see anything new.
  void wake() const {
    if (asleep_.load()) tree_.transport().wake();
  }
  /// Returns whether the loop's thread is asleep, with the engine unlocked.
  bool asleep() const noexcept { return waits_.load(); }
  bool is_this_thread() const noexcept { return driver_.load() == std::this_thread::get_id(); }

 private:
  void sleep(std::unique_lock<std::mutex>& engine);
  bool drive(const WorkState& work, Stage goal, TimePoint now, TimePoint deadline);
  void run_rounds(const WorkState& work, Stage goal, TimePoint now, TimePoint deadline);
  void publish_sleep();
  std::uint64_t progress() const;

  void poll_operations(TimePoint now);
  void yield_core();
  void poll_again();
  std::optional<Duration> progress_host_backend() const;
  void expect_none_overdue(TimePoint now) const;
  bool busy() const;
  std::uint64_t progress_of_operations() const;
  Waiting waiting() const;
  bool sleeps_on_descriptor() const { return busy() && waiting() == Waiting::Descriptor; }
  std::optional<int> prepare_sleep() const;
  TimePoint next_event(TimePoint now) const;

  ControlPlane& control_;
  const ControlTree& tree_;
  SubmissionQueue& queue_;
  EngineCounters& counters_ = control_.counters();
  const SetEngines& sets_ = control_.sets();

  // Constant once start() has returned.
  Board* board_ = nullptr;
  bool outnumbers_cores_ = false;
  Duration patience_{};

  // Guarded by engine_.
  std::mutex engine_;
  bool runs_ = false;           ///< callers may run the loop
  std::exception_ptr failure_;  ///< of a round that a caller ran
  TimePoint sleeps_until_{};    ///< of the loop's thread
  TimePoint hot_until_{};       ///< operations are polled without sleeping until then
  int long_yields_ = 0;         ///< consecutive
  TimePoint crowded_until_{};   ///< others compute on this core until then

  std::atomic<std::thread::id> driver_{};  ///< the thread that runs the loop
  std::atomic<bool> asleep_{false};
  std::atomic<bool> waits_{false};
};

}  // namespace ronde
