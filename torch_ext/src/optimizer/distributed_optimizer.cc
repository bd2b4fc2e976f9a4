// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/distributed_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <torch/optim/lbfgs.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/gradients/gradient_reducer.h"
#include "torch_ext/src/gradients/optimizer_parameters.h"
#include "torch_ext/src/gradients/wire_dtype.h"
#include "torch_ext/src/optimizer/delta_exchange.h"

namespace ronde {
namespace {

std::string scope_of(const DistributedOptimizerOptions& options) {
  if (!options.name.empty()) return options.name;
  return detail::numbered_name("optimizer", options.process_set);
}

}  // namespace

/// Keeps the order of calls right; the gradients are the reducer's.
class DistributedOptimizer::Impl {
 public:
  Impl(torch::optim::Optimizer& inner,
       const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
       DistributedOptimizerOptions options,
       std::shared_ptr<torch::optim::Optimizer> owned = nullptr)
      : owned_(std::move(owned)),
        inner_(inner),
        evaluates_often_(dynamic_cast<const torch::optim::LBFGS*>(&inner) != nullptr) {
    detail::check_member("ronde::DistributedOptimizer", options.process_set,
                         "Its gradients would be reduced with no other's: step the inner "
                         "optimizer there, or give a set that has this rank");
    const std::string scope = scope_of(options);
    const std::vector<detail::NamedParameter> parameters =
        agree_on_parameters(scope, named_parameters, options, 0);
    if (options.op == ReduceOp::Adasum && options.adasum_of_deltas) deltas_.emplace(scope);
    reducer_ = std::make_shared<detail::GradientReducer>(scope, std::move(options), inner_);
    watch(parameters);
  }

  void add_parameters(const torch::OrderedDict<std::string, at::Tensor>& named_parameters) {
    watch(agree_on_parameters(reducer_->scope(), named_parameters, reducer_->options(),
                              reducer_->parameter_count()));
  }

  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure) {
    if (!closure && evaluates_often_) {
      throw UsageError(detail::rank_prefix() + "ronde::DistributedOptimizer(\"" +
                       reducer_->scope() +
                       "\"): LBFGS evaluates the loss itself, several times a step. Pass step() a "
                       "closure that calls zero_grad() and backward(), and returns the loss");
    }
    at::Tensor loss;
    if (evaluates_often_) {
      loss = inner_.step([&] { return evaluate(closure); });
    } else {
      if (closure) loss = call(closure);
      synchronize_for_step();
      step_inner();
    }
    reducer_->stepped();
    mark_step(reducer_->options().samples_per_step);
    return loss;
  }

  torch::optim::Optimizer& inner() noexcept { return inner_; }
  const std::shared_ptr<detail::GradientReducer>& reducer() const noexcept { return reducer_; }

 private:
  void watch(const std::vector<detail::NamedParameter>& parameters) {
    watch_gradients(parameters);
    reducer_->replicas().watch(parameters);
  }

  void watch_gradients(std::vector<detail::NamedParameter> parameters) {
    if (!deltas_) return reducer_->watch(std::move(parameters));
    const std::size_t known = deltas_->size();
    deltas_->watch(parameters);
    // No gradient travels.
    for (detail::NamedParameter& named : parameters) named.is_local = true;
    try {
      reducer_->watch(std::move(parameters));
    } catch (...) {
      deltas_->forget_behind(known);
      throw;
    }
  }

  /// With nothing to step with on this rank, the others must not wait for its change.
  void synchronize_for_step() {
    try {
      reducer_->synchronize();
    } catch (...) {
      if (deltas_) deltas_->cancel(*reducer_);
      throw;
    }
  }

  void step_inner() {
    if (!deltas_) {
      inner_.step();
      return;
    }
    const DistributedOptimizerOptions& options = reducer_->options();
    const AllreduceOptions combination = {.op = options.op,
                                          .prescale = options.prescale,
                                          .postscale = options.postscale,
                                          .process_set = options.process_set,
                                          .timeout = options.timeout,
                                          .wire_dtype = detail::wire_dtype_of(options.compression)};
    try {
      deltas_->begin(*reducer_);
      inner_.step();
    } catch (...) {
      reducer_->step_failed();
      deltas_->cancel(*reducer_);
      throw;
    }
    try {
      deltas_->combine(combination);
    } catch (...) {
      reducer_->step_failed();
      throw;
    }
  }

  /// The parameters of the inner optimizer behind the first `known`. Throws on all ranks alike.
  std::vector<detail::NamedParameter> agree_on_parameters(
      const std::string& scope, const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
      const DistributedOptimizerOptions& options, std::size_t known) const {
    detail::Statement statement;
    std::vector<detail::NamedParameter> parameters;
    try {
      if (reducer_) reducer_->expect_room_for_parameters();
      detail::check_options(inner_, options);
      parameters = detail::match_parameters(inner_, known, named_parameters);
      detail::apply_options(parameters, options, known == 0);
      statement.lines = detail::state_parameters(inner_, parameters, options);
    } catch (const UsageError& error) {
      statement.problem = error.what();
    }
    detail::agree("ronde::DistributedOptimizer(\"" + scope + "\")", statement, options.process_set,
                  {.timeout = options.timeout});
    return parameters;
  }

  static at::Tensor call(const torch::optim::Optimizer::LossClosure& closure) {
    const at::AutoGradMode gradients_on(true);
    return closure();
  }

  /// The loss and the gradients of all ranks.
  at::Tensor evaluate(const torch::optim::Optimizer::LossClosure& closure) {
    reducer_->stepped();
    const at::Tensor mine = call(closure);
    reducer_->synchronize();
    AllreduceOptions options = reducer_->reduction();
    options.name = reducer_->scope() + "/loss";
    return allreduce(mine.detach(), options);
  }

  const std::shared_ptr<torch::optim::Optimizer> owned_;  // null: the caller keeps it
  torch::optim::Optimizer& inner_;
  const bool evaluates_often_;
  std::shared_ptr<detail::GradientReducer> reducer_;
  std::optional<detail::DeltaExchange> deltas_;  // of Adasum: what travels in place of gradients
};

DistributedOptimizer::DistributedOptimizer(
    torch::optim::Optimizer& inner,
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
    DistributedOptimizerOptions options)
    : impl_(std::make_unique<Impl>(inner, named_parameters, std::move(options))) {}

DistributedOptimizer::DistributedOptimizer(
    std::shared_ptr<torch::optim::Optimizer> inner,
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
    DistributedOptimizerOptions options) {
  if (!inner) {
    throw UsageError(detail::rank_prefix() +
                     "ronde::DistributedOptimizer: the optimizer to wrap is null");
  }
  torch::optim::Optimizer& wrapped = *inner;
  impl_ = std::make_unique<Impl>(wrapped, named_parameters, std::move(options), std::move(inner));
}

DistributedOptimizer::~DistributedOptimizer() = default;
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&& other) noexcept = default;
DistributedOptimizer& DistributedOptimizer::operator=(DistributedOptimizer&& other) noexcept =
    default;

void DistributedOptimizer::zero_grad(bool set_to_none) {
  impl_->reducer()->restart(set_to_none);
  inner().zero_grad(set_to_none);
}

at::Tensor DistributedOptimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  return impl_->step(closure);
}

void DistributedOptimizer::synchronize() {
  impl_->reducer()->expect_not_skipping();
  impl_->reducer()->synchronize();
}

void DistributedOptimizer::add_parameters(
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters) {
  impl_->add_parameters(named_parameters);
}

void DistributedOptimizer::set_backward_passes_per_step(int passes) {
  detail::GradientReducer& reducer = *impl_->reducer();
  reducer.expect_nothing_in_flight("set_backward_passes_per_step() was called");
  DistributedOptimizerOptions options = reducer.options();
  options.backward_passes_per_step = passes;
  detail::check_options(inner(), options);
  reducer.set_backward_passes_per_step(passes);
}

torch::optim::Optimizer& DistributedOptimizer::inner() noexcept {
  return impl_->inner();
}

detail::GradientReducer& detail::reducer_of(DistributedOptimizer& optimizer) noexcept {
  return *optimizer.impl_->reducer();
}

DistributedOptimizer::NoSync DistributedOptimizer::no_sync() {
  return {impl_->reducer(), false};
}

DistributedOptimizer::Guard::Guard(const std::shared_ptr<detail::GradientReducer>& reducer,
                                   bool skips)
    : reducer_(reducer), skips_(skips) {
  reducer->nest(skips, 1);
}

DistributedOptimizer::Guard::Guard(Guard&& other) noexcept = default;

DistributedOptimizer::Guard::~Guard() {
  if (const auto reducer = reducer_.lock()) reducer->nest(skips_, -1);
}

DistributedOptimizer::SkipSynchronize DistributedOptimizer::skip_synchronize() {
  const DistributedOptimizerOptions& options = impl_->reducer()->options();
  if (options.op == ReduceOp::Adasum && options.adasum_of_deltas) {
    throw UsageError(detail::rank_prefix() +
                     "ronde::DistributedOptimizer: skip_synchronize() was called, but with "
                     "adasum_of_deltas gradients are not reduced, and ranks that did not combine "
                     "their steps would part. Clip between backward() and step()");
  }
  return {impl_->reducer(), true};
}

}  // namespace ronde
