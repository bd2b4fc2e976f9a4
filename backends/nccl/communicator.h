// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "backends/gpu/driver/device_context.h"
#include "backends/nccl/nccl_api.h"

namespace ronde::nccl {

/// A communicator of NCCL whose calls block until the other ranks make theirs, and the thread that
/// makes them, one task at a time. A call may never return: an abort ends it. If that hangs as
/// well, the thread is detached, so a task owns all that it uses.
///
/// NCCL's calls need the context of the rank's GPU. Without one they would make one on the first
/// GPU, beside that of the rank that is there.
///
/// Thread-safety: tasks call connect(), handle(), call() and close(); one thread starts and polls
/// them, and aborts. The rest: full.
class BlockingCommunicator {
 public:
  using Clock = std::chrono::steady_clock;

  /// `context`: of the rank's GPU. `size`: the number of ranks.
  BlockingCommunicator(std::shared_ptr<const NcclApi> api,
                       std::shared_ptr<const cuda::DeviceContext> context, int size);
  /// Aborts it unless it is closed. Joins the thread, or detaches it if a task is running.
  ~BlockingCommunicator();

  const NcclApi& api() const noexcept { return *api_; }

  /// Starts a task, which runs in the context; the one before it must have ended. After an abort it
  /// does not run.
  void start(std::function<void()> task);
  /// Returns whether the task has ended. Throws what it has thrown.
  bool poll();
  /// Waits until no task runs, or the deadline; returns whether none runs.
  bool is_idle(Clock::time_point deadline) const noexcept;

  /// Blocks until all ranks have called it, of which this is `rank`; `id` is equal on all. Nothing
  /// ends this call: if the communicator is aborted meanwhile, this call aborts it before it
  /// returns. Throws NcclError, or Error if it was aborted.
  void connect(const UniqueId& id, int rank);

  /// For the next call. Throws Error if the communicator is not open.
  Communicator handle(const std::string& doing) const;

  /// Makes a call on this communicator. Throws NcclError unless it succeeds.
  template <typename... Arguments, typename... Given>
  void call(const std::string& doing, const vendor::Entry<Result, Arguments...>& function,
            Given... given) const {
    check(function.symbol(), function(given...), doing);
  }
  /// Checks the result of a call that was made. Throws likewise.
  void check(const char* symbol, Result result, const std::string& doing) const;

  /// Throws NcclError if issued work has failed, Error if the communicator was aborted.
  void watch(const std::string& doing) const;

  /// Closes it once all ranks do. Throws NcclError, or Error if it was aborted.
  void close();

  /// Ends calls and work in progress, unless the communicator is closed, and drops a task that has
  /// not begun. Waits for that until `deadline`, and returns whether NCCL's abort has returned; a
  /// second call only waits. That abort may hang if the GPU does, so a thread of its own calls it.
  bool abort(Clock::time_point deadline) noexcept;

  /// Leaves the thread alone, as a task that it runs may never end.
  void detach() { thread_.detach(); }

 private:
  enum class Stage { Connecting, Open, Aborted, Closed };
  struct State;

  const std::shared_ptr<const NcclApi> api_;
  const int size_;
  const std::shared_ptr<State> state_;  ///< shared with the threads
  std::thread thread_;
  std::future<void> aborting_;
  bool was_abort_begun_ = false;
};

}  // namespace ronde::nccl
