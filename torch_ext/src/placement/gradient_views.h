// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ronde/process_set.h"
#include "ronde/stats.h"
#include "torch_ext/src/placement/gradient_placement.h"
#include "torch_ext/src/placement/symmetric_block.h"

namespace ronde::detail {

/// How gradients came to where they are reduced. Any thread may read.
struct GradientCounters {
  std::atomic<std::uint64_t> placed{0};       ///< backward wrote it there
  std::atomic<std::uint64_t> accumulated{0};  ///< backward added to what was there
  std::atomic<std::uint64_t> copied{0};
  std::atomic<std::uint64_t> copied_bytes{0};

  StatsGroup stats() const;
};

/// The gradient of one parameter in the symmetric heap, with the parameter's strides.
///
/// Thread-safety: none, as GradientReducer.
class GradientView {
 public:
  GradientView(const at::Tensor& parameter, std::shared_ptr<SymmetricBlock> block,
               std::size_t offset, std::shared_ptr<GradientCounters> counters);

  /// The gradient, to be a parameter's grad().
  const at::Tensor& tensor() const noexcept { return tensor_; }
  /// The same memory as one row.
  const at::Tensor& flat() const noexcept { return flat_; }

  /// Whether `gradient` is there.
  bool holds(const at::Tensor& gradient) const;

  /// Makes the view the gradient, by a copy unless backward wrote it there. A gradient with a graph
  /// of its own (create_graph) stays where it is, and so does one that was there before
  /// (`had_gradient`) and that the program refers to, too. `incoming`: what was accumulated.
  void adopt(at::Tensor& gradient, bool had_gradient, const at::Tensor& incoming);

  /// Something else lives there, so that nothing may be written. Passes by itself, in backward.
  bool is_occupied() const { return place_ && place_->is_occupied(); }

  /// Moves the memory of `kept` elsewhere if it is the view's: the program keeps this tensor, which
  /// autograd therefore copied (a hook that stores it, say).
  void evict(const at::Tensor& kept) const;

  /// Has gradients that flow into `accumulator` written there from now on, where `is_free` allows.
  void attract(const torch::autograd::Node* accumulator, std::function<bool()> is_free);

 private:
  at::Tensor tensor_;
  at::Tensor flat_;
  std::shared_ptr<SymmetricBlock> block_;
  std::shared_ptr<GradientCounters> counters_;
  std::shared_ptr<GradientPlace> place_;  ///< null until attract()
};

/// One view a parameter, in one block; nothing for a parameter without elements. Collective. Empty,
/// on all ranks, where the ranks share no memory for it, or a parameter is not on the CPU. `scope`
/// begins the names of operations, `timeout` is that of each.
std::vector<std::optional<GradientView>> make_gradient_views(
    const std::string& scope, const std::vector<at::Tensor>& parameters, ProcessSet set,
    std::chrono::nanoseconds timeout);

}  // namespace ronde::detail
