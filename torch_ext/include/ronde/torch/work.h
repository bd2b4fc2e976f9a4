// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "ronde/work.h"

namespace ronde {

namespace detail {
struct TensorOperation;
}  // namespace detail

/// Handle to an operation on tensors. Copies share the operation; all members may be called from
/// any thread. Dropping it neither cancels nor waits: see Work.
class TensorWork : public Work {
 public:
  /// An empty handle: done, with an undefined tensor as its result.
  TensorWork() = default;
  /// Made by the collectives alone.
  TensorWork(Work work, std::shared_ptr<const detail::TensorOperation> operation)
      : Work(std::move(work)), operation_(std::move(operation)) {}

  /// Returns the result once it may be used; of the in-place forms it is the tensor that was given.
  /// On the CPU it blocks until the operation is done. On a GPU it blocks until that is queued, and
  /// has what this thread queues there from now on, in the stream that is its current one now, run
  /// after it; what other streams are given is not ordered. Throws what Work::wait_on throws.
  at::Tensor wait() const;

  /// Blocks until the result is in memory, on whatever device, and returns it. Throws what
  /// Work::wait throws.
  at::Tensor wait_host() const;

  /// The result of an operation that is done; never blocks. Throws UsageError while it is pending,
  /// and the operation's error if it failed.
  at::Tensor result() const;

 private:
  std::shared_ptr<const detail::TensorOperation> operation_;
};

/// Handle to a group of operations on tensors, which succeed or fail together. Copies share them;
/// all members may be called from any thread.
class GroupWork {
 public:
  /// An empty handle: done, with no results.
  GroupWork() = default;
  /// Made by the grouped collectives alone.
  explicit GroupWork(std::vector<TensorWork> works) : works_(std::move(works)) {}

  /// Every operation has its result or its error. Never blocks.
  bool done() const;

  /// As TensorWork::wait() for all, whose results it returns in the order of the tensors. Throws
  /// what that throws, of the first operation that failed.
  std::vector<at::Tensor> wait() const;

  /// The same with TensorWork::wait_host().
  std::vector<at::Tensor> wait_host() const;

  /// As wait_host(), for at most `duration`. False: not all are done yet, and nothing is harmed.
  bool wait_for(std::chrono::nanoseconds duration) const;

  /// The first error of a group that is done; null while pending and after success.
  std::exception_ptr error() const;

  /// The results of a group that is done; never blocks. Throws UsageError while it is pending, and
  /// its error if it failed.
  std::vector<at::Tensor> results() const;

  /// The operations, in the order of the tensors.
  const std::vector<TensorWork>& works() const noexcept { return works_; }

 private:
  std::vector<TensorWork> works_;
};

}  // namespace ronde
