// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace ronde {

class WorkState;

namespace detail {
class Suspension;
}

/// Handle to a submitted operation. Copies share the operation; all members may be called from any
/// thread. Dropping the last handle neither cancels nor waits: buffers stay alive until completion,
/// and an error that was never read is logged. In a child of fork() every call throws UsageError.
class Work {
 public:
  /// An empty handle: done, without error.
  Work() = default;
  /// Made by Runtime alone.
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  /// Returns whether the result or the error is available. Never blocks.
  bool done() const;

  /// Blocks until done, which on a device is when the result is in memory. Throws UsageError or
  /// GroupError if the operation failed, each time.
  void wait() const;

  /// On a device: blocks until the result is queued there, which is before it is in memory, and
  /// orders work that is queued on `stream` (of the same device; a cudaStream_t) from now on after
  /// it. A later failure on the device fails the group. On the CPU it is wait().
  void wait_on(void* stream) const;

  /// Waits as wait(), for at most `duration`. False: not done yet, and nothing is harmed.
  bool wait_for(std::chrono::nanoseconds duration) const;

  /// Returns the error of a finished operation; null while pending and after success.
  std::exception_ptr error() const;

  /// Returns false if the operation is done and no rank contributed to it (Request::contributes),
  /// so that the output was left as it was.
  bool contributed() const;

  /// Returns false if the operation is done and ranks gave it different digests (Request::digest);
  /// the same on all ranks of the operation.
  bool digests_agree() const;

  /// Alltoall: returns the rows from each rank, in rank order. Empty for other operations.
  /// Throws UsageError while the operation is pending, and its error if it failed; on a device it
  /// may be asked once the operation is queued (wait_on).
  std::vector<std::int64_t> received_splits() const;

  /// Recv: returns the rank, within the process set, that sent the data. -1 for other operations.
  /// Throws as received_splits().
  int source() const;

  /// Join: returns the rank within its set that joined last. -1 for other operations; throws as
  /// received_splits().
  int last_rank() const;

  /// Runs `callback` once when the operation is done: on Ronde's thread or one that waits for an
  /// operation, or at once on this thread if it is done already. It must not block nor throw, nor
  /// lock a mutex that a thread holds while it waits: a CompletionQueue needs no callback.
  void on_done(std::function<void()> callback) const;

 private:
  friend class detail::Suspension;

  std::shared_ptr<WorkState> state_;
};

}  // namespace ronde
