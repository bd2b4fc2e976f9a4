// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/jorge.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {
namespace {

constexpr std::int64_t kLargestSide = 1024;

/// Part of the mean eigenvalue of the statistics that is added to all: without it a direction that
/// never has a gradient (a pixel that is always black) grows with each refresh, until it overflows.
constexpr double kDamping = 0.01;

[[noreturn]] void refuse(ProcessSet set, const std::string& text) {
  throw UsageError(detail::rank_prefix(set) + "ronde::Jorge: " + text);
}

void check_options(const JorgeOptions& options, ProcessSet set) {
  const auto check = [set](const char* name, double value, double least, double limit,
                           const char* range) {
    if (value >= least && value < limit) return;
    refuse(set, std::string(name) + " is " + std::to_string(value) + "; it must be " + range);
  };
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  check("lr", options.lr(), 0, kNoLimit, "finite and not negative");
  check("momentum", options.momentum(), 0, 1, "at least 0 and less than 1");
  check("weight_decay", options.weight_decay(), 0, kNoLimit, "finite and not negative");
  check("refresh_every", static_cast<double>(options.refresh_every()), 1, kNoLimit, "at least 1");
}

void check_gradient(const at::Tensor& gradient, ProcessSet set) {
  const bool is_dense = gradient.layout() == at::kStrided;
  const at::ScalarType type = gradient.scalar_type();
  if (is_dense && (type == at::kFloat || type == at::kDouble)) return;
  refuse(set, "a gradient is " + detail::describe(gradient) + (is_dense ? "" : ", sparse") +
                  ". Jorge steps dense parameters of f32 and f64: step others by Adam or SGD");
}

at::Tensor as_matrix(const at::Tensor& tensor) {
  return tensor.reshape({tensor.size(0), -1});
}

/// Returns the identity, or nothing for a side without a preconditioner.
at::Tensor make_preconditioner(std::int64_t length, const at::Tensor& parameter) {
  if (length < 2 || length > kLargestSide) return {};
  return at::eye(length, parameter.options());
}

std::unique_ptr<JorgeParamState> make_state(const at::Tensor& parameter) {
  auto state = std::make_unique<JorgeParamState>();
  state->momentum_buffer(at::zeros_like(parameter));
  if (parameter.dim() < 2 || parameter.numel() == 0) return state;
  state->left(make_preconditioner(parameter.size(0), parameter));
  state->right(make_preconditioner(parameter.numel() / parameter.size(0), parameter));
  if (state->left().defined() || state->right().defined()) {
    state->preconditioned_buffer(at::zeros_like(parameter));
  }
  return state;
}

/// Note [Jorge's series]
/// P estimates A^(-1/4) of the average A of statistics S = G G^T. The next average b A + (1-b) S is
/// b A (I + Y), with Y = (1-b)/b P^4 S, where A and S commute. Its root is
///
///     b^(-1/4) P (I + Y)^(-1/4) = b^(-1/4) P (I - Y/4 + 5/32 Y^2 - 15/128 Y^3 + ...).
///
/// b is chosen so that Y has the norm 1, where the series still converges: (1-b)/b = 1/|P^4 S|. In
/// place of P^4 S stands P^2 S P^2, and the result is made symmetric, which is the same where A and
/// S commute: otherwise P would lose its symmetry, and b would grow to 1 (docs/notes/jorge.md).
///
/// `sides`: [n, m], its statistics are sides * sides^T. A refresh without a finite, positive norm
/// of Y, as gradients are zero or not finite, leaves P as it is.
at::Tensor refreshed(const at::Tensor& preconditioner, const at::Tensor& sides) {
  at::Tensor statistics = sides.matmul(sides.t());
  const at::Tensor mean = statistics.diagonal().mean();
  statistics.diagonal().add_(mean * kDamping);
  const at::Tensor square = preconditioner.matmul(preconditioner);
  const at::Tensor product = square.matmul(statistics).matmul(square);
  const at::Tensor norm = product.norm();
  const at::Tensor y = product / norm;
  const at::Tensor series = y.matmul(y).mul_(5.0 / 32).sub_(y, 0.25);  // without the identity
  const at::Tensor root = preconditioner + preconditioner.matmul(series);
  const at::Tensor factor = (norm / (1 + norm)).pow(-0.25);
  return at::where(at::isfinite(factor), (root + root.t()) * (factor / 2), preconditioner);
}

/// Writes the step of SGD with momentum, turned to the preconditioned direction.
void step_parameter(const at::Tensor& parameter, const JorgeOptions& options,
                    JorgeParamState& state) {
  const at::Tensor gradient = parameter.grad();
  if (options.weight_decay() != 0) parameter.mul_(1 - options.lr() * options.weight_decay());
  state.momentum_buffer().mul_(options.momentum()).add_(gradient);
  at::Tensor direction = state.momentum_buffer();
  if (state.preconditioned_buffer().defined()) {
    at::Tensor turned = as_matrix(gradient);
    if (state.left().defined()) turned = state.left().matmul(turned);
    if (state.right().defined()) turned = turned.matmul(state.right());
    at::Tensor& momentum = state.preconditioned_buffer();
    momentum.mul_(options.momentum()).add_(turned.view_as(gradient), 1 - options.momentum());
    // Where it is zero, so is SGD's.
    const at::Tensor length = momentum.norm().clamp_min(std::numeric_limits<float>::min());
    direction = momentum * (direction.norm() / length);
  }
  parameter.add_(direction, -options.lr());
}

/// A preconditioner that a step refreshes.
struct Due {
  at::Tensor matrix;
  at::Tensor sides;  ///< the gradient, or its transpose
  std::string name;
  int owner = 0;  ///< the rank, within the set, that refreshes it

  double work() const {
    const auto length = static_cast<double>(matrix.size(0));
    return length * length * (5 * length + static_cast<double>(sides.size(1)));
  }
};

/// Gives each rank about the same work: the largest first, each to the rank that has the least.
void refresh(std::vector<Due> due, ProcessSet set) {
  std::ranges::stable_sort(due, std::greater<>(), &Due::work);
  std::vector<double> work(ranks_of(set).size());
  for (Due& one : due) {
    const auto least = std::ranges::min_element(work);
    *least += one.work();
    one.owner = static_cast<int>(least - work.begin());
  }
  // Others' are received while this rank computes its own.
  const int rank = rank_in(set).value();
  std::ranges::stable_partition(due, [&](const Due& one) { return one.owner != rank; });
  std::vector<TensorWork> works;
  for (const Due& one : due) {
    if (one.owner == rank) one.matrix.copy_(refreshed(one.matrix, one.sides));
    if (work.size() == 1) continue;
    works.push_back(
        broadcast_async_(one.matrix, {.name = one.name, .root = one.owner, .process_set = set}));
  }
  for (const TensorWork& done : works) done.wait();
}

/// A parameter with a gradient.
struct Stepped {
  at::Tensor parameter;
  const JorgeOptions& options;
  std::string name;
  JorgeParamState* state = nullptr;
};

}  // namespace

void JorgeOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(refresh_every);
}

void JorgeOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, momentum);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(std::int64_t, refresh_every);
}

void JorgeParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum_buffer);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(preconditioned_buffer);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(left);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(right);
}

void JorgeParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(std::int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, momentum_buffer);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, preconditioned_buffer);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, left);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, right);
}

Jorge::Jorge(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
             JorgeOptions defaults, ProcessSet process_set)
    : Optimizer(param_groups, std::make_unique<JorgeOptions>(defaults)), set_(process_set) {
  detail::check_member("ronde::Jorge", set_, "Give a set that has this rank");
  for (const auto& group : this->param_groups()) {
    check_options(static_cast<const JorgeOptions&>(group.options()), set_);
  }
  name_ = detail::numbered_name("jorge", set_);
}

at::Tensor Jorge::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode gradients_on(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  std::vector<Stepped> all;
  std::size_t number = 0;
  for (const auto& group : param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const std::string name = name_ + "/" + std::to_string(number++);
      if (!parameter.grad().defined()) continue;
      check_gradient(parameter.grad(), set_);
      all.push_back({parameter, static_cast<const JorgeOptions&>(group.options()), name});
    }
  }
  std::vector<Due> due;
  for (auto& [parameter, options, name, state] : all) {
    void* const key = parameter.unsafeGetTensorImpl();
    auto found = state_.find(key);
    if (found == state_.end()) found = state_.emplace(key, make_state(parameter)).first;
    state = static_cast<JorgeParamState*>(found->second.get());
    const bool is_due = state->step()++ % options.refresh_every() == 0;
    if (!is_due || !state->preconditioned_buffer().defined()) continue;
    const at::Tensor gradient = as_matrix(parameter.grad());
    if (state->left().defined()) due.push_back({state->left(), gradient, name + "/left"});
    if (state->right().defined()) due.push_back({state->right(), gradient.t(), name + "/right"});
  }
  refresh(std::move(due), set_);
  for (const Stepped& one : all) step_parameter(one.parameter, one.options, *one.state);
  return loss;
}

}  // namespace ronde
