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
  /// Used by the collectives.
  TensorWork(Work work, std::shared_ptr<const detail::TensorOperation> operation)
      : Work(std::move(work)), operation_(std::move(operation)) {}

  /// Returns the result once it may be used; for the in-place forms, the tensor that was passed. On
  /// the CPU this blocks until the operation is done. On a GPU it blocks until the operation is
  /// queued, and orders later work in this thread's current stream behind it; other streams are not
  /// ordered. Throws what Work::wait_on throws.
  at::Tensor wait() const;

  /// Blocks until the result is in memory, on any device, and returns it. Throws what Work::wait
  /// throws.
  at::Tensor wait_host() const;

  /// Returns the result of an operation that is done; never blocks. Throws UsageError while it is
  /// pending, and the operation's error if it failed.
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
  /// Used by the grouped collectives.
  explicit GroupWork(std::vector<TensorWork> works) : works_(std::move(works)) {}

  /// Returns whether every operation has its result or its error. Never blocks.
  bool done() const;

  /// Calls TensorWork::wait() for all, and returns the results in the order of the tensors. Throws
  /// the error of the first operation that failed.
  std::vector<at::Tensor> wait() const;

  /// Calls TensorWork::wait_host() for all instead.
  std::vector<at::Tensor> wait_host() const;

  /// Waits as wait_host(), for at most `duration`. Returns false if not all are done yet.
  bool wait_for(std::chrono::nanoseconds duration) const;

  /// Returns the first error of a group that is done; null while pending and after success.
  std::exception_ptr error() const;

  /// Returns the results of a group that is done; never blocks. Throws UsageError while it is
  /// pending, and its error if it failed.
  std::vector<at::Tensor> results() const;

  /// Returns the operations, in the order of the tensors.
  const std::vector<TensorWork>& works() const noexcept { return works_; }

 private:
  std::vector<TensorWork> works_;
};

}  // namespace ronde
