// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/src/base/caller.h"
#include "ronde/process_set.h"
#include "ronde/symmetric_heap.h"
#include "torch_ext/src/common/counters.h"
#include "torch_ext/src/placement/gradient_placement.h"

namespace ronde::detail {

/// A reservation in the symmetric heap, at the same offset on every rank. Not cleared.
class SymmetricBlock {
 public:
  SymmetricBlock(std::shared_ptr<SymmetricHeap> heap, std::size_t offset)
      : heap_(std::move(heap)), offset_(offset) {}
  ~SymmetricBlock() {
    if (fork_depth() == fork_depth_) heap_->release(offset_);  // Note [After fork]
  }
  SymmetricBlock(const SymmetricBlock&) = delete;
  SymmetricBlock& operator=(const SymmetricBlock&) = delete;

  std::byte* data() const noexcept { return heap_->own(offset_); }

 private:
  const std::shared_ptr<SymmetricHeap> heap_;
  const std::size_t offset_;
  const int fork_depth_ = fork_depth();
};

/// Collective, with the same arguments on every rank. Returns null on all ranks if the backend has
/// no symmetric heap or a rank has no room there. `name` and `timeout` are those of the operations
/// by which the ranks agree.
std::shared_ptr<SymmetricBlock> make_symmetric_block(const std::string& name, std::size_t bytes,
                                                     ProcessSet set,
                                                     std::chrono::nanoseconds timeout);

/// The gradient of one parameter in the symmetric heap, with the parameter's strides.
///
/// Thread-safety: none, as GradientReducer.
class GradientView {
 public:
  GradientView(const at::Tensor& parameter, std::shared_ptr<SymmetricBlock> block,
               std::size_t offset, std::shared_ptr<GradientCounters> counters);

  /// Returns the gradient, for a parameter's grad().
  const at::Tensor& tensor() const noexcept { return tensor_; }
  /// Returns the gradient's memory as one row.
  const at::Tensor& flat() const noexcept { return flat_; }

  /// Returns whether `gradient` is this view's.
  bool holds(const at::Tensor& gradient) const;

  /// Makes the view the gradient, by a copy unless backward wrote it there. Leaves a gradient with
  /// a graph of its own (create_graph), and one that existed before (`had_gradient`) if the program
  /// refers to it, too. `incoming`: the tensor that was accumulated.
  void adopt(at::Tensor& gradient, bool had_gradient, const at::Tensor& incoming);

  /// Returns whether another tensor occupies the memory, as it may during backward.
  bool is_occupied() const { return place_ && place_->is_occupied(); }

  /// Moves `kept` to other memory if it is in the view's: the program keeps this tensor (in a hook,
  /// say), so that autograd copied it.
  void evict(const at::Tensor& kept) const;

  /// Has backward write gradients of `accumulator` here from now on, where `is_free` allows.
  void place_gradients(const torch::autograd::Node* accumulator, std::function<bool()> is_free);

 private:
  at::Tensor tensor_;
  at::Tensor flat_;
  std::shared_ptr<SymmetricBlock> block_;
  std::shared_ptr<GradientCounters> counters_;
  std::shared_ptr<GradientPlace> place_;  ///< null until place_gradients()
};

/// Makes one view for each parameter, in one block; none for a parameter without elements. Returns
/// an empty list on all ranks if the ranks share no memory for it, or a parameter is not on the
/// CPU. Collective. `scope` begins the names of operations, `timeout` is that of each.
std::vector<std::optional<GradientView>> make_gradient_views(
    const std::string& scope, const std::vector<at::Tensor>& parameters, ProcessSet set,
    std::chrono::nanoseconds timeout);

}  // namespace ronde::detail
