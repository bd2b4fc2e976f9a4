// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/distributed_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <torch/optim/lbfgs.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "agreement.h"
#include "gradient_reducer.h"
#include "ronde/error.h"
#include "ronde/ronde.h"
#include "tensor_request.h"

namespace ronde {
namespace {

/// Numbered among those of the same ranks, all of which construct them in the same order: a rank
/// outside a set knows nothing of the set's.
std::string scope_of(const DistributedOptimizerOptions& options) {
  if (!options.name.empty()) return options.name;
  static std::mutex mutex;
  static std::map<std::vector<int>, int> constructed;
  const std::vector<int> ranks = ranks_of(options.process_set);
  const std::lock_guard lock(mutex);
  return "optimizer" + std::to_string(constructed[ranks]++);
}

}  // namespace

/// Keeps the order of calls right; the gradients are the reducer's.
class DistributedOptimizer::Impl {
 public:
  Impl(torch::optim::Optimizer& inner,
       const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
       DistributedOptimizerOptions options)
      : inner_(inner) {
    detail::check_member("ronde::DistributedOptimizer", options.process_set,
                         "Its gradients would be reduced with no other's: step the inner "
                         "optimiser there, or give a set that has this rank");
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
