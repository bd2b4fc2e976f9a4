// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "torch_ext/src/gradients/gradient_exchange.h"

namespace ronde::detail {

/// Keeps the program away from a gradient while it is being reduced.
///
/// Note [Gradients in flight]
/// A write by the program is then lost, or makes the ranks' models differ. Version counters do not
/// notice most of it: clip_grad_norm_() and the optimizers use Tensor::data(), which has a counter
/// of its own. So a tensor of the same shape, whose memory LibTorch refuses to give out, stands in
/// for the gradient, and such a call fails where it is made, on the gradient as it was. The counter
/// shows writes through an older handle to the gradient itself.
///
/// Thread-safety: none, as GradientReducer.
class GradientGuard {
 public:
  /// Hides the gradient that `parameter` has, if it has one.
  void hide(const ParameterSubject& subject, const at::Tensor& parameter);

  /// The hidden one; undefined if there is none.
  const at::Tensor& gradient() const noexcept { return gradient_; }

  /// Gives it back, unless the program has put another, or none, in its place. False if it was
  /// written meanwhile.
  [[nodiscard]] bool restore(const at::Tensor& parameter);

 private:
  at::Tensor stand_in_;  ///< made once
  at::Tensor gradient_;  ///< undefined: none is hidden
  std::int64_t version_ = 0;
};

}  // namespace ronde::detail
