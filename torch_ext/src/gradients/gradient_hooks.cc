// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/gradients/gradient_hooks.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "torch_ext/src/gradients/gradient_reducer.h"

namespace ronde::detail {
namespace {

using torch::autograd::FunctionPostHook;
using torch::autograd::FunctionPreHook;
using torch::autograd::variable_list;

// A hook may outlive its reducer: removed or not, autograd may be running it.
class BeforeAccumulation final : public FunctionPreHook {
 public:
  BeforeAccumulation(std::weak_ptr<GradientReducer> reducer, std::size_t index)
      : reducer_(std::move(reducer)), index_(index) {}

  variable_list operator()(const variable_list& gradients) override {
    if (const auto reducer = reducer_.lock()) reducer->before_accumulation(index_);
    return gradients;
  }

 private:
  std::weak_ptr<GradientReducer> reducer_;
  std::size_t index_;
};

class AfterAccumulation final : public FunctionPostHook {
 public:
  AfterAccumulation(std::weak_ptr<GradientReducer> reducer, std::size_t index)
      : reducer_(std::move(reducer)), index_(index) {}

  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (const auto reducer = reducer_.lock()) reducer->after_accumulation(index_, inputs.at(0));
    return outputs;
  }

  bool alive() const noexcept { return !reducer_.expired(); }

 private:
  std::weak_ptr<GradientReducer> reducer_;
  std::size_t index_;
};

}  // namespace

bool has_live_hook(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  return std::any_of(accumulator->post_hooks().begin(), accumulator->post_hooks().end(),
                     [](const auto& hook) {
                       const auto* ours = dynamic_cast<const AfterAccumulation*>(hook.get());
                       return ours != nullptr && ours->alive();
                     });
}

GradientHooks::GradientHooks(const at::Tensor& parameter,
                             const std::weak_ptr<GradientReducer>& reducer, std::size_t index)
    : accumulator_(torch::autograd::impl::grad_accumulator(parameter)) {
  auto before = std::make_unique<BeforeAccumulation>(reducer, index);
  before_ = before.get();
  accumulator_->add_pre_hook(std::move(before));
  after_ = accumulator_->add_post_hook(std::make_unique<AfterAccumulation>(reducer, index));
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
