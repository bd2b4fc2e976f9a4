// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/gradients/gradient_hooks.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "core/src/base/caller.h"
#include "torch_ext/src/gradients/gradient_reducer.h"

namespace ronde::detail {
namespace {

using torch::autograd::FunctionPostHook;
using torch::autograd::FunctionPreHook;
using torch::autograd::variable_list;

/// The reducer and parameter of a hook. The hook may outlive the reducer, as autograd may still be
/// running it.
struct Target {
  /// Returns null also in a child of fork(): Note [After fork].
  std::shared_ptr<GradientReducer> lock() const {
    return fork_depth() == depth ? reducer.lock() : nullptr;
  }

  std::weak_ptr<GradientReducer> reducer;
  std::size_t index;
  int depth = fork_depth();
};

struct BeforeAccumulation final : FunctionPreHook {
  explicit BeforeAccumulation(Target to) : target(std::move(to)) {}

  variable_list operator()(const variable_list& gradients) override {
    if (const auto reducer = target.lock()) reducer->before_accumulation(target.index);
    return gradients;
  }

  const Target target;
};

struct AfterAccumulation final : FunctionPostHook {
  explicit AfterAccumulation(Target to) : target(std::move(to)) {}

  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (const auto reducer = target.lock()) {
      reducer->after_accumulation(target.index, inputs.at(0));
    }
    return outputs;
  }

  const Target target;
};

}  // namespace

bool has_live_hook(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  return std::ranges::any_of(accumulator->post_hooks(), [](const auto& hook) {
    const auto* ours = dynamic_cast<const AfterAccumulation*>(hook.get());
    return ours != nullptr && !ours->target.reducer.expired();
  });
}

GradientHooks::GradientHooks(const at::Tensor& parameter,
                             const std::weak_ptr<GradientReducer>& reducer, std::size_t index)
    : accumulator_(torch::autograd::impl::grad_accumulator(parameter)) {
  auto before = std::make_unique<BeforeAccumulation>(Target{reducer, index});
  before_ = before.get();
  accumulator_->add_pre_hook(std::move(before));
  after_ = accumulator_->add_post_hook(std::make_unique<AfterAccumulation>(Target{reducer, index}));
}

bool GradientHooks::are_on(const at::Tensor& parameter) const {
  return torch::autograd::impl::try_get_grad_accumulator(parameter) == accumulator_;
}

GradientHooks::~GradientHooks() {
  std::erase_if(accumulator_->pre_hooks(),
                [this](const auto& hook) { return hook.get() == before_; });
  accumulator_->del_post_hook(after_);
}

}  // namespace ronde::detail
