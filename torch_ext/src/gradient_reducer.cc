// SPDX-License-Identifier: Apache-2.0
#include "gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <set>
#include <unordered_map>
#include <utility>

#include "ronde/error.h"
#include "ronde/torch/device.h"
#include "tensor_request.h"

namespace ronde::detail {
namespace {

using torch::autograd::FunctionPostHook;
using torch::autograd::FunctionPreHook;
using torch::autograd::variable_list;

constexpr const char* kWrappedTwice =
    "it has a DistributedOptimizer already. Destroy that one before another is constructed";

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

bool has_live_hook(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  return std::any_of(accumulator->post_hooks().begin(), accumulator->post_hooks().end(),
                     [](const auto& hook) {
                       const auto* ours = dynamic_cast<const AfterAccumulation*>(hook.get());
                       return ours != nullptr && ours->alive();
                     });
}

// Whether other tensors than the gradient and the incoming one it was made of use its memory.
// Autograd steals an incoming gradient that nobody else refers to, but does not see views: the
// gradients of a and b in a.view(..) + b.view(..) can be one and the same memory. Reducing it in
// place would reduce it twice.
bool shares_memory(const at::Tensor& gradient, const at::Tensor& incoming) {
  if (!gradient.has_storage()) return false;
  const bool stolen = incoming.defined() && incoming.has_storage() &&
                      incoming.storage().is_alias_of(gradient.storage());
  return gradient.storage().use_count() > (stolen ? 2 : 1);
}

std::string where(std::size_t group, std::size_t index, const at::Tensor& parameter) {
  return "parameter " + std::to_string(index) + " of group " + std::to_string(group) + " (" +
         describe(parameter) + ")";
}

bool positive_or_negative(double scale) {
  return std::isfinite(scale) && scale != 0.0;
}

/// Gradients that are reduced where they lie must be laid out alike.
std::string layout_text(const at::Tensor& parameter) {
  if (parameter.layout() != at::kStrided || parameter.is_contiguous()) return {};
  return " with strides " + describe_shape(parameter.strides());
}

std::string text_of(double value) {
  // Exactly: 17 digits tell any two doubles apart.
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

}  // namespace

std::vector<NamedParameter> match_parameters(
    const torch::optim::Optimizer& inner,
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& item : named_parameters) {
    if (item.key().empty()) throw UsageError("a parameter has an empty name");
    names.try_emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  std::vector<NamedParameter> matched;
  std::set<const c10::TensorImpl*> seen;
  for (std::size_t group = 0; group < inner.param_groups().size(); ++group) {
    const std::vector<at::Tensor>& parameters = inner.param_groups()[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto* key = parameters[i].unsafeGetTensorImpl();
      const auto name = names.find(key);
      if (!parameters[i].defined() || name == names.end()) {
        throw UsageError(where(group, i, parameters[i]) +
                         " of the optimiser is not in named_parameters. Pass named_parameters() of "
                         "the module whose parameters the optimiser has");
      }
      if (!seen.insert(key).second) {
        throw UsageError(where(group, i, parameters[i]) + ", \"" + name->second +
                         "\", is in the optimiser twice");
      }
      check_tensor("\"" + name->second + "\"", parameters[i]);
      if (has_live_hook(parameters[i])) {
        throw UsageError("\"" + name->second + "\": " + kWrappedTwice);
      }
      matched.push_back({name->second, parameters[i]});
    }
  }
  if (matched.empty()) throw UsageError("the optimiser has no parameters");
  return matched;
}

std::vector<std::string> state_parameters(const std::vector<NamedParameter>& parameters,
                                          const DistributedOptimizerOptions& options) {
  std::vector<std::string> lines = {
      "op " + std::string(to_string(options.op)) + ", prescale " + text_of(options.prescale) +
      ", postscale " + text_of(options.postscale) + ", backward_passes_per_step " +
      std::to_string(options.backward_passes_per_step) + ", average_aggregated_gradients " +
      (options.average_aggregated_gradients ? "true" : "false") + ", gradient_views " +
      (options.gradient_views ? "true" : "false")};
  for (const auto& [name, parameter] : parameters) {
    lines.push_back(name + ": " + describe(parameter) + layout_text(parameter) +
                    (parameter.requires_grad() ? "" : ", frozen"));
  }
  return lines;
}

void check_options(const DistributedOptimizerOptions& options) {
  if (options.backward_passes_per_step < 1) {
    throw UsageError("backward_passes_per_step is " +
                     std::to_string(options.backward_passes_per_step) + "; it must be at least 1");
  }
  if (!positive_or_negative(options.prescale) || !positive_or_negative(options.postscale)) {
    throw UsageError("prescale (" + text_of(options.prescale) + ") and postscale (" +
                     text_of(options.postscale) + ") must be finite and not zero");
  }
}

void check_same_parameters(const torch::optim::Optimizer& inner, std::size_t expected) {
  std::size_t count = 0;
  for (const auto& group : inner.param_groups()) count += group.params().size();
  if (count == expected) return;
  throw UsageError(rank_prefix() + "ronde::DistributedOptimizer: the optimiser has " +
                   std::to_string(count) + " parameters, but had " + std::to_string(expected) +
                   " when it was wrapped. Destroy the DistributedOptimizer and construct it anew "
                   "after adding parameters");
}

GradientReducer::GradientReducer(const std::string& scope, DistributedOptimizerOptions options)
    : scope_(scope), options_(std::move(options)) {}

GradientReducer::~GradientReducer() {
  for (Slot& slot : slots_) {
    remove_hooks(slot);
    // Nobody waits for it any more: who asks has it done all the same.
    if (slot.submitted) static_cast<void>(slot.work.done());
  }
}

void GradientReducer::watch(std::vector<NamedParameter> parameters) {
  for (NamedParameter& named : parameters) {
    Slot slot;
    slot.name = std::move(named.name);
    slot.operation_name = scope_ + "/" + slot.name;
    slot.parameter = std::move(named.parameter);
    slots_.push_back(std::move(slot));
  }
  make_views();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].parameter.requires_grad()) install_hooks(i);
  }
}

void GradientReducer::make_views() {
  const bool has_neutral = options_.op == ReduceOp::Sum || options_.op == ReduceOp::Average;
  if (!options_.gradient_views || !has_neutral) return;
  std::vector<at::Tensor> parameters;
  for (const Slot& slot : slots_) parameters.push_back(slot.parameter);
  auto views = make_gradient_views(scope_, parameters, options_.process_set);
  for (std::size_t i = 0; i < views.size(); ++i) slots_[i].view = std::move(views[i]);
  if (views.empty()) return;
  is_lazy_ = computing_takes_all_cores();
}

void GradientReducer::install_hooks(std::size_t index) {
  Slot& slot = slots_[index];
  if (has_live_hook(slot.parameter)) refuse(slot, kWrappedTwice);
  slot.accumulator = torch::autograd::impl::grad_accumulator(slot.parameter);
  auto before = std::make_unique<BeforeAccumulation>(weak_from_this(), index);
  slot.before = before.get();
  slot.accumulator->add_pre_hook(std::move(before));
  slot.after =
      slot.accumulator->add_post_hook(std::make_unique<AfterAccumulation>(weak_from_this(), index));
  if (!slot.view) return;
  slot.view->attract(slot.accumulator.get(), [this, index] {
    return !slots_[index].submitted && !slots_[index].parameter.grad().defined();
  });
}

void GradientReducer::remove_hooks(Slot& slot) noexcept {
  if (!slot.accumulator) return;
  if (slot.view) GradientPlacement::instance().remove(slot.accumulator.get());
  auto& before = slot.accumulator->pre_hooks();
  std::erase_if(before, [&](const auto& hook) { return hook.get() == slot.before; });
  slot.accumulator->del_post_hook(slot.after);
}

void GradientReducer::before_accumulation(std::size_t index) {
  Slot& slot = slots_[index];
  if (slot.submitted) {
    refuse(slot, "backward reached it once more while its gradient is being reduced: " +
                     std::to_string(options_.backward_passes_per_step) +
                     " backward pass(es) a step were announced. Call step() after each, set "
                     "backward_passes_per_step, or wrap the passes that shall only add up (or that "
                     "belong to another optimiser) in no_sync()");
  }
  if (phase_ == Phase::Reduced) {
    refuse(slot,
           "backward ran between synchronize() and step(), so that its gradient would be "
           "added to the reduced one. Call step() or zero_grad() first");
  }
  if (phase_ == Phase::Failed) {
    refuse(slot, "the last reduction failed. Call DistributedOptimizer::zero_grad() first");
  }
  slot.had_gradient = slot.parameter.grad().defined();
}

void GradientReducer::after_accumulation(std::size_t index, const at::Tensor& incoming) {
  Slot& slot = slots_[index];
  at::Tensor& gradient = slot.parameter.mutable_grad();
  if (!gradient.defined()) return;
  if (slot.view) {
    slot.view->adopt(gradient, slot.had_gradient);
  } else if (!slot.had_gradient && shares_memory(gradient, incoming)) {
    gradient = gradient.clone();
  }
  if (no_sync_depth_ > 0) return;
  ++slot.passes;
  if (slot.passes < options_.backward_passes_per_step) return;
  if (slot.view && slot.view->is_occupied()) return;  // synchronize() submits it
  submit(slot);
}

void GradientReducer::submit(Slot& slot) {
  const at::Tensor& gradient = slot.parameter.grad();
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    refuse(slot,
           "its gradient is sparse, which Ronde does not reduce. Construct the layer with "
           "sparse(false)");
  }
  AllreduceOptions options{.name = slot.operation_name,
                           .op = options_.op,
                           .prescale = options_.prescale,
                           .postscale = options_.postscale,
                           .process_set = options_.process_set,
                           .timeout = options_.timeout};
  if (options_.average_aggregated_gradients) options.prescale /= options_.backward_passes_per_step;
  slot.stands_in = !gradient.defined();
  if (slot.view) {
    submit_view(slot, options);
  } else {
    const at::Tensor& parameter = slot.parameter;
    slot.reduced = slot.stands_in ? at::zeros(parameter.sizes(), parameter.options()) : gradient;
    slot.work = start_allreduce_(slot.reduced, options,
                                 slot.stands_in ? Contribution::Nothing : Contribution::Tensor);
  }
  slot.submitted = true;
}

void GradientReducer::submit_view(Slot& slot, const AllreduceOptions& options) {
  if (slot.view->is_occupied()) {
    refuse(slot,
           "the memory of its gradient view is in use by another tensor that backward made. "
           "Set DistributedOptimizerOptions::gradient_views to false, and please report this");
  }
  const at::Tensor& gradient = slot.parameter.grad();
  slot.copies_back = !slot.stands_in && !slot.view->holds(gradient);
  if (slot.copies_back) {
    const at::NoGradGuard no_grad;
    slot.view->tensor().copy_(gradient);
  }
  slot.reduced = slot.stands_in ? slot.view->tensor() : gradient;
  slot.work = start_symmetric_allreduce_(
      slot.view->flat(), options, slot.stands_in ? Contribution::Nothing : Contribution::Tensor,
      is_lazy_);
}

// The gradients that backward did not submit, in the same order on every rank.
void GradientReducer::submit_rest() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.accumulator && slot.parameter.requires_grad()) install_hooks(i);
    if (slot.accumulator && !slot.submitted) submit(slot);
  }
}

void GradientReducer::finish(Slot& slot) {
  slot.work.wait();
  if (!slot.stands_in) {
    if (slot.parameter.grad().is_same(slot.reduced)) {
      if (slot.copies_back) slot.reduced.detach().copy_(slot.view->tensor());
      return;
    }
    refuse(slot,
           "its gradient was cleared or replaced while it was being reduced. Between "
           "backward() and step() call neither zero_grad() nor set gradients");
  }
  if (!slot.work.contributed()) return;
  if (slot.view) {
    slot.parameter.mutable_grad() = slot.reduced;
    return;
  }
  // As autograd would have made it: with the parameter's strides.
  at::Tensor gradient = at::empty_like(slot.parameter);
  slot.parameter.mutable_grad() = gradient.copy_(slot.reduced);
}

void GradientReducer::synchronize() {
  if (phase_ == Phase::Reduced) return;
  if (phase_ == Phase::Failed || no_sync_depth_ > 0) {
    throw UsageError(rank_prefix() + "ronde::DistributedOptimizer(\"" + scope_ + "\"): " +
                     (phase_ == Phase::Failed
                          ? "the last reduction failed, so there is nothing to step with. Call "
                            "zero_grad() and run backward again"
                          : "step() or synchronize() was called inside no_sync(). Leave it first"));
  }
  std::exception_ptr first;
  const auto keep_first = [&first] {
    if (!first) first = std::current_exception();
  };
  try {
    submit_rest();
  } catch (...) {
    keep_first();
  }
  for (Slot& slot : slots_) {
    try {
      if (slot.submitted) finish(slot);
    } catch (...) {
      keep_first();
    }
    slot.submitted = false;
    slot.passes = 0;
    slot.reduced.reset();
    slot.work = {};
  }
  phase_ = first ? Phase::Failed : Phase::Reduced;
  if (first) std::rethrow_exception(first);
}

void GradientReducer::stepped() noexcept {
  phase_ = Phase::Accumulating;
}

void GradientReducer::restart() {
  for (const Slot& slot : slots_) {
    if (!slot.submitted) continue;
    refuse(slot,
           "zero_grad() was called while its gradient is being reduced. Call step() or "
           "synchronize() after backward() first; wrap a backward whose gradients are to be "
           "thrown away here (another optimiser's loss) in no_sync()");
  }
  for (Slot& slot : slots_) slot.passes = 0;
  phase_ = Phase::Accumulating;
}

void GradientReducer::refuse(const Slot& slot, const std::string& text) const {
  throw UsageError(rank_prefix() + "ronde::DistributedOptimizer(\"" + scope_ + "\"): parameter \"" +
                   slot.name + "\": " + text);
}

}  // namespace ronde::detail
