// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ronde::detail {

class GradientReducer;

inline constexpr const char* kWrappedTwice =
    "it has a DistributedOptimizer already. Destroy that one before another is constructed";

/// Returns whether a living reducer watches the parameter.
bool has_live_hook(const at::Tensor& parameter);

/// A reducer's hooks before and after autograd accumulates the gradient of one parameter. The hook
/// after accumulation submits. The one before it refuses a backward that would add to memory that
/// is being reduced, and records whether a gradient existed: autograd may make its own tensor the
/// gradient if none did.
class GradientHooks {
 public:
  /// `index` is passed to the reducer.
  GradientHooks(const at::Tensor& parameter, const std::weak_ptr<GradientReducer>& reducer,
                std::size_t index);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// Returns false once the parameter got data of another dtype or device, which drops its
  /// accumulator.
  bool are_on(const at::Tensor& parameter) const;

  const torch::autograd::Node* accumulator() const noexcept { return accumulator_.get(); }

 private:
  // Keeps the accumulator alive: autograd would make a new one, without hooks.
  std::shared_ptr<torch::autograd::Node> accumulator_;
  torch::autograd::FunctionPreHook* before_ = nullptr;
  std::uintptr_t after_ = 0;
};

}  // namespace ronde::detail
