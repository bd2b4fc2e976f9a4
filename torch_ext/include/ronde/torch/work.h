// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

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
  TensorWork(Work work, std::shared_ptr<const detail::TensorOperation> operation)
      : Work(std::move(work)), operation_(std::move(operation)) {}

  /// Blocks until the result may be used, and returns it; of the in-place forms it is the tensor
  /// that was given. (For tensors on a GPU it will order the current stream after the operation
  /// and not block.) Throws what Work::wait throws.
  at::Tensor wait() const;

  /// Blocks until the result is in memory, on whatever device, and returns it.
  at::Tensor wait_host() const;

  /// The result of an operation that is done; never blocks. Throws UsageError while it is pending,
  /// and the operation's error if it failed.
  at::Tensor result() const;

 private:
  std::shared_ptr<const detail::TensorOperation> operation_;
};

}  // namespace ronde
