// SPDX-License-Identifier: Apache-2.0
// The gradient of every collective, in f64, against two oracles: one process that computes the
// results of all ranks with LibTorch alone and differentiates the sum of their losses, and finite
// differences over the collective itself.
#include "cases.h"

namespace ronde_test::gradients_test {
namespace {

std::vector<Case> all_cases() {
  std::vector<Case> cases = single_cases();
  for (const Case& one : group_cases()) cases.push_back(one);
  return cases;
}

Tensors inputs(const Case& one) {
  Tensors tensors;
  for (int rank = 0; rank < ranks(); ++rank) {
    tensors.push_back(normal(one.shape(rank), 70 + rank));
  }
  return tensors;
}

/// Another loss on each rank.
at::Tensor loss_of(int rank, const at::Tensor& result) {
  const at::Tensor weights = normal(result.sizes(), 90 + rank);
  return (weights * result.sin()).sum();
}

at::Tensor sum_of_losses(const Tensors& results) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (int rank = 0; rank < ranks(); ++rank) sum = sum + loss_of(rank, results[index(rank)]);
  return sum;
}

/// Of the inputs' gradients, by one process: what a penalty on them adds as well, if `twice`.
Tensors expected_gradients(const Case& one, bool twice) {
  Tensors tensors = inputs(one);
  for (at::Tensor& tensor : tensors) tensor.requires_grad_();
  const Tensors gradients =
      torch::autograd::grad({sum_of_losses(one.whole(tensors))}, tensors, {}, true, twice, true);
  if (!twice) return gradients;
  at::Tensor penalty = at::zeros({}, at::kDouble);
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined()) penalty = penalty + gradient.pow(3).sum();
  }
  return torch::autograd::grad({penalty}, tensors, {}, std::nullopt, false, true);
}

at::Tensor defined(const at::Tensor& gradient, const at::Tensor& like) {
  return gradient.defined() ? gradient : at::zeros_like(like);
}

/// The same by all ranks together, on this one.
at::Tensor gradient_here(const Case& one, bool twice) {
  at::Tensor tensor = inputs(one)[index(own_rank())].clone().requires_grad_();
  const at::Tensor loss = loss_of(own_rank(), one.collective(tensor));
  const at::Tensor gradient = torch::autograd::grad({loss}, {tensor}, {}, std::nullopt, twice)[0];
  if (!twice) return gradient;
  return defined(
      torch::autograd::grad({gradient.pow(3).sum()}, {tensor}, {}, std::nullopt, false, true)[0],
      tensor);
}

/// The sum of all ranks' losses if the tensor of this rank is `tensor`.
double loss_with(const Case& one, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor loss = loss_of(own_rank(), one.collective(tensor.clone()));
  return ronde::allreduce(loss, {.name = "loss", .op = ReduceOp::Sum, .process_set = here})
      .item<double>();
}

/// By central differences: each element of each rank is moved in turn.
at::Tensor finite_differences(const Case& one) {
  constexpr double kStep = 1e-5;
  at::Tensor mine;
  for (int rank = 0; rank < ranks(); ++rank) {
    const bool is_mine = rank == own_rank();
    const at::Tensor tensor = inputs(one)[index(own_rank())];
    const at::Tensor gradient = at::zeros(one.shape(rank), at::kDouble);
    for (std::int64_t i = 0; i < gradient.numel(); ++i) {
      const auto moved = [&](double step) {
        at::Tensor other = tensor.clone();
        if (is_mine) other.view(-1)[i] += step;
        return loss_with(one, other);
      };
      gradient.view(-1)[i] = (moved(kStep) - moved(-kStep)) / (2 * kStep);
    }
    if (is_mine) mine = gradient;
  }
  return mine;
}

void check_all_cases() {
  for (const Case& one : all_cases()) {
    CAPTURE(one.name);
    const at::Tensor gradient = gradient_here(one, false);
    const at::Tensor mine = inputs(one)[index(own_rank())];
    CHECK(near(gradient, defined(expected_gradients(one, false)[index(own_rank())], mine), 1e-12));
    CHECK(near(gradient, finite_differences(one), 1e-8));
  }
}

/// Gradients of gradients.
void check_all_cases_twice() {
  for (const Case& one : all_cases()) {
    CAPTURE(one.name);
    const at::Tensor mine = inputs(one)[index(own_rank())];
    CHECK(near(gradient_here(one, true),
               defined(expected_gradients(one, true)[index(own_rank())], mine), 1e-12));
  }
}

}  // namespace

TEST_CASE("gradients of collectives are those of one process, and finite differences") {
  check_all_cases();
}

TEST_CASE("gradients in a process set go by its members and their order", "[n3]") {
  const ronde::ProcessSet set = ronde::add_process_set({2, 0});
  if (ronde::rank_in(set)) {
    here = set;
    check_all_cases();
    check_all_cases_twice();
    here = {};
  }
  ronde::remove_process_set(set);
}

TEST_CASE("gradients of gradients of collectives are those of one process") {
  check_all_cases_twice();
}

TEST_CASE("of equal least or greatest elements each has its part, and zeros are factors") {
  const auto values = [](int rank) {
    // Equal everywhere, equal on all ranks but 0, zero on rank 0, zero on all.
    return at::tensor({2.0, rank == 0 ? 1.0 : 5.0, rank == 0 ? 0.0 : 3.0, 0.0}, at::kDouble);
  };
  struct Op {
    ReduceOp op;
    std::function<at::Tensor(const at::Tensor& stacked)> reduce;
  };
  for (const Op& one : {Op{ReduceOp::Min, [](const at::Tensor& all) { return all.amin(0); }},
                        Op{ReduceOp::Max, [](const at::Tensor& all) { return all.amax(0); }},
                        Op{ReduceOp::Product, [](const at::Tensor& all) { return all.prod(0); }}}) {
    CAPTURE(to_string(one.op));
    Tensors all;
    for (int rank = 0; rank < ranks(); ++rank) all.push_back(values(rank).requires_grad_());
    sum_of_losses(for_all(one.reduce(at::stack(all)))).backward();
    const at::Tensor mine = values(ronde::rank()).requires_grad_();
    loss_of(ronde::rank(), ronde::allreduce(mine, {.op = one.op})).backward();
    CHECK(near(mine.grad(), all[index(ronde::rank())].grad(), 1e-12));
  }
}

TEST_CASE("tensors of any strides and gradients that are expanded will do") {
  at::Tensor tensor = normal({4, 3}, 5).requires_grad_();
  const double all = ranks();
  ronde::allreduce(tensor.t(), {.op = ReduceOp::Sum}).sum().backward();
  CHECK(near(tensor.grad(), full({4, 3}, all), 1e-12));
  tensor.mutable_grad().reset();
  ronde::allgather(tensor.t()).sum().backward();
  CHECK(near(tensor.grad(), full({4, 3}, all), 1e-12));
  tensor.mutable_grad().reset();
  ronde::reducescatter(tensor.slice(0, 0, 4, 2).expand({2, 2, 3})).sum().backward();
  CHECK(near(tensor.grad().sum(), full({}, 12 / all), 1e-12));
}

TEST_CASE("gradients have the dtype of their tensors") {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    CAPTURE(c10::toString(dtype));
    at::Tensor tensor = at::full({3, 2}, 0.5, dtype).requires_grad_();
    const at::Tensor sum = ronde::allreduce(tensor).sum() + ronde::allgather(tensor).sum() +
                           ronde::reducescatter(tensor, {.op = ReduceOp::Sum}).sum() +
                           ronde::alltoall(tensor.repeat({ranks(), 1})).sum() +
                           ronde::broadcast(tensor).sum();
    sum.backward();
    CHECK(tensor.grad().scalar_type() == dtype);
    const double root = ronde::rank() == 0 ? ranks() : 0;
    CHECK(near(tensor.grad(), at::full({3, 2}, 1 + ranks() + 1 + ranks() + root, dtype), 1e-6));
  }
}

}  // namespace ronde_test::gradients_test
