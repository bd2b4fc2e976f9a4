// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>

namespace ronde::detail {

/// Where a gradient should be.
class GradientPlace {
 public:
  /// `owner` keeps the memory; `is_free` tells whether nothing of value is there now.
  GradientPlace(std::byte* data, std::size_t bytes, std::shared_ptr<void> owner,
                std::function<bool()> is_free);

  /// The gradient is at `data` in the end: next time it is this allocation that gets the place.
  void learn(const void* data) noexcept;

  /// Something else than a gradient lives there now.
  bool is_occupied() const noexcept;

 private:
  friend class GradientPlacement;
  static constexpr int kMostSeen = 8;

  std::byte* const data_;
  const std::size_t bytes_;
  const std::shared_ptr<void> owner_;
  const std::function<bool()> is_free_;
  // Guarded by the placement's mutex.
  bool lent_ = false;
  bool holds_gradient_ = false;  ///< what it was lent to became the gradient
  int wanted_ = 0;  ///< which allocation of its size, of the operation that makes the gradient
  int seen_ = 0;
  std::array<const void*, kMostSeen> addresses_ = {};
};

/// Makes backward write gradients where they are to be reduced.
///
/// Note [Placing gradients]
/// LibTorch has no way to tell an operation of backward where to write its result: a gradient
/// somewhere else means a copy of the whole model in each step. But results are allocated by the
/// allocator of the CPU while autograd says which node it is running, and the node knows whose
/// gradient its outputs are. So an allocator in front of LibTorch's own hands out the place of a
/// parameter's gradient for an allocation of exactly its size, made by the node right before the
/// parameter's (or with views between). An operation may allocate several times that size; which of
/// them became the gradient is learnt from the last time. If another result of the operation has
/// that size, nothing is handed out, nor in a backward that makes a graph or that gives gradients
/// to somebody else than the parameters: so whatever gets the place by a wrong guess lives no
/// longer than the operation, and until then nobody else writes there (is_occupied). Everything
/// else goes through to the allocator that was there before.
///
/// Thread-safety: every member may be called from any thread.
class GradientPlacement {
 public:
  static GradientPlacement& instance();

  /// Gradients that flow into `accumulator`, a parameter's, go to `place`. The first call installs
  /// the allocator with LibTorch, for good: what it handed out may be freed at any later time.
  void add(const torch::autograd::Node* accumulator, std::shared_ptr<GradientPlace> place);
  void remove(const torch::autograd::Node* accumulator) noexcept;

  GradientPlacement(const GradientPlacement&) = delete;
  GradientPlacement& operator=(const GradientPlacement&) = delete;

 private:
  class Allocator;
  friend class GradientPlace;
  GradientPlacement();
  ~GradientPlacement() = delete;

  struct State;
  State* const state_;
  bool installed_ = false;  // guarded by the state's mutex
};

}  // namespace ronde::detail
