// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace ronde::detail {

/// The memory in which a gradient should be.
class GradientPlace {
 public:
  /// `owner` keeps the memory alive; `is_free` returns whether it may be overwritten now.
  GradientPlace(std::byte* data, std::size_t bytes, std::shared_ptr<void> owner,
                std::function<bool()> is_free);

  /// Records that the gradient ended at `data`: that allocation gets the place next time.
  void learn(const void* data) noexcept;

  /// Returns whether something other than a gradient is there now.
  bool is_occupied() const noexcept { return use_.load() == Use::Allocation; }

 private:
  friend struct GradientPlacement;
  static constexpr int kMostSeen = 8;
  /// What is there: nothing, an allocation, or one that became the gradient.
  enum class Use : std::uint8_t { None, Allocation, Gradient };

  std::byte* const data_;
  const std::size_t bytes_;
  const std::shared_ptr<void> owner_;
  const std::function<bool()> is_free_;
  // Guarded by the placement's mutex; atomic members are read without it.
  std::atomic<Use> use_{Use::None};
  std::atomic<int> seen_{0};  ///< allocations since learn()
  int wanted_ = 0;  ///< number of the allocation, among the operation's of this size, to lend to
  std::array<const void*, kMostSeen> addresses_ = {};
};

/// Make backward write gradients that flow into `accumulator`, a parameter's, to `place`, and no
/// longer do so. May be called from any thread.
///
/// Note [Placing gradients]
/// LibTorch offers no way to choose where an operation of backward writes its result, and a
/// gradient elsewhere means a copy of the whole model in each step. But results come from the CPU's
/// allocator while autograd runs a known node, whose outputs are the gradients of known tensors. So
/// an allocator in front of LibTorch's own returns the place of a parameter's gradient for an
/// allocation of exactly its size by the node right before the parameter's (or with views between).
/// An operation may allocate that size several times; the last time shows which allocation became
/// the gradient. No place is handed out if another result of the operation has that size, nor in a
/// backward that makes a graph or computes gradients of other tensors than parameters. So an
/// allocation that gets the place by a wrong guess lives no longer than the operation, and until
/// then nothing else is written there (is_occupied). All other allocations pass through to the
/// former allocator.
/// @{
void place_gradients(const torch::autograd::Node* accumulator,
                     std::shared_ptr<GradientPlace> place);
void stop_placing(const torch::autograd::Node* accumulator) noexcept;
/// @}

}  // namespace ronde::detail
