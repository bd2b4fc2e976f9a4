// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <thread>

namespace ronde::nccl {

/// A task of an IssuingThread, for the one who waits for it.
///
/// Thread-safety: one thread waits, another one runs it.
class Task {
 public:
  /// True once it has run. Throws what it has thrown.
  bool poll();

 private:
  friend class IssuingThread;
  std::atomic<bool> has_run_{false};
  std::exception_ptr error_;  ///< written before has_run_
};

/// A thread for calls that block until other ranks make theirs. It runs its tasks one after the
/// other, and sleeps while there are none.
///
/// A call may never return. Its thread is then left to itself, so a task owns all that it uses.
///
/// Thread-safety: full.
class IssuingThread {
 public:
  using Clock = std::chrono::steady_clock;

  /// What a task does, for those who give it up. Connecting uses no memory of the program's.
  enum class Kind : std::uint8_t { Connect, Work };

  IssuingThread();
  /// Joins the thread, or leaves it to itself if a task is running.
  ~IssuingThread();
  IssuingThread(const IssuingThread&) = delete;
  IssuingThread& operator=(const IssuingThread&) = delete;

  std::shared_ptr<Task> submit(Kind kind, std::function<void()> run);

  /// Drops the tasks that have not begun. Those submitted from now on are dropped, too.
  void stop() noexcept;
  /// After stop(): whether no task of Kind::Work runs any more. Waits for that until the deadline.
  bool has_stopped(Clock::time_point deadline) const noexcept;

 private:
  struct State;
  const std::shared_ptr<State> state_;  ///< also the thread's
  std::thread thread_;
};

}  // namespace ronde::nccl
