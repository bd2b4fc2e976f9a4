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

/// A task of an IssuingThread.
///
/// Thread-safety: one thread polls, another one runs the task.
class Task {
 public:
  /// Whether it has run. Throws what it has thrown.
  bool poll();

 private:
  friend class IssuingThread;
  std::atomic<bool> has_run_{false};
  std::exception_ptr error_;  ///< written before has_run_
};

/// A thread that runs tasks one after the other, for calls that block until other ranks make
/// theirs. A call may never return; its thread is then detached, so a task owns all that it uses.
///
/// Thread-safety: full.
class IssuingThread {
 public:
  using Clock = std::chrono::steady_clock;

  /// What a task does: connecting uses no memory of the program's.
  enum class Kind : std::uint8_t { Connect, Work };

  IssuingThread();
  /// Joins the thread, or detaches it if a task is running.
  ~IssuingThread();

  std::shared_ptr<Task> submit(Kind kind, std::function<void()> run);

  /// Drops the tasks that have not begun, and those submitted from now on.
  void stop() noexcept;
  /// After stop(): waits until no task of Kind::Work runs, or the deadline; returns whether so.
  bool has_stopped(Clock::time_point deadline) const noexcept;

 private:
  struct State;
  const std::shared_ptr<State> state_;  ///< also the thread's
  std::thread thread_;
};

}  // namespace ronde::nccl
