// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/distributed_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <torch/optim/lbfgs.h>

#include <atomic>
#include <utility>

#include "agreement.h"
#include "gradient_reducer.h"
#include "ronde/error.h"
#include "tensor_request.h"

namespace ronde {
namespace {

std::string scope_of(const DistributedOptimizerOptions& options) {
  static std::atomic<int> constructed{0};
  const int number = constructed.fetch_add(1);
  return options.name.empty() ? "optimizer" + std::to_string(number) : options.name;
}

}  // namespace

/// Keeps the order of calls right; the gradients are the reducer's.
class DistributedOptimizer::Impl {
 public:
  Impl(torch::optim::Optimizer& inner,
       const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
       DistributedOptimizerOptions options)
      : inner_(inner) {
    const std::string scope = scope_of(options);
    const std::string subject = "ronde::DistributedOptimizer(\"" + scope + "\")";
    detail::Statement statement;
    std::vector<detail::NamedParameter> parameters;
    try {
      if (dynamic_cast<const torch::optim::LBFGS*>(&inner) != nullptr) {
        throw UsageError(
            "LBFGS evaluates the loss many times in a step, and its line search would have to "
            "agree between the ranks. Use Adam, AdamW, SGD, RMSprop or Adagrad");
      }
      parameters = detail::match_parameters(inner, named_parameters);
      statement.lines = detail::state_parameters(parameters, options);
      detail::check_options(options);
    } catch (const UsageError& error) {
      statement.problem = error.what();
    }
    detail::agree(subject, statement, options.process_set);
    reducer_ = std::make_shared<detail::GradientReducer>(scope, std::move(options));
    reducer_->watch(std::move(parameters));
  }

  void zero_grad(bool set_to_none) {
    reducer_->restart();
    inner_.zero_grad(set_to_none);
  }

  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure) {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode gradients_on(true);
      loss = closure();
    }
    synchronize();
    inner_.step();
    reducer_->stepped();
    return loss;
  }

  void synchronize() {
    detail::check_same_parameters(inner_, reducer_->parameter_count());
    reducer_->synchronize();
  }

  torch::optim::Optimizer& inner() noexcept { return inner_; }
  const std::shared_ptr<detail::GradientReducer>& reducer() const noexcept { return reducer_; }

 private:
  torch::optim::Optimizer& inner_;
  std::shared_ptr<detail::GradientReducer> reducer_;
};

DistributedOptimizer::DistributedOptimizer(
    torch::optim::Optimizer& inner,
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
    DistributedOptimizerOptions options)
    : impl_(std::make_unique<Impl>(inner, named_parameters, std::move(options))) {}

DistributedOptimizer::~DistributedOptimizer() = default;
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&& other) noexcept = default;
DistributedOptimizer& DistributedOptimizer::operator=(DistributedOptimizer&& other) noexcept =
    default;

void DistributedOptimizer::zero_grad(bool set_to_none) {
  impl_->zero_grad(set_to_none);
}

at::Tensor DistributedOptimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  return impl_->step(closure);
}

void DistributedOptimizer::synchronize() {
  impl_->synchronize();
}

torch::optim::Optimizer& DistributedOptimizer::inner() noexcept {
  return impl_->inner();
}

DistributedOptimizer::NoSync DistributedOptimizer::no_sync() {
  return NoSync(impl_->reducer());
}

DistributedOptimizer::NoSync::NoSync(std::shared_ptr<detail::GradientReducer> reducer)
    : reducer_(std::move(reducer)) {
  reducer_->enter_no_sync();
}

DistributedOptimizer::NoSync::NoSync(NoSync&& other) noexcept = default;

DistributedOptimizer::NoSync::~NoSync() {
  if (reducer_) reducer_->leave_no_sync();
}

}  // namespace ronde
