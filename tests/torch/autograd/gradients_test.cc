// SPDX-License-Identifier: Apache-2.0
// The gradient of every collective, in f64, against two oracles: one process that computes the
// results of all ranks with LibTorch alone and differentiates the sum of their losses, and finite
// differences over the collective itself.
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "support.h"

using namespace ronde_test;
using ronde::ReduceOp;
using Tensors = std::vector<at::Tensor>;

namespace {

struct Case {
  std::string name;
  std::function<std::vector<std::int64_t>(int rank)> shape;
  /// What a rank does.
  std::function<at::Tensor(const at::Tensor& tensor)> collective;
  /// What all ranks get, from what all have.
  std::function<Tensors(const Tensors& tensors)> whole;
};

std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

int ranks() {
  return ronde::size();
}

std::function<std::vector<std::int64_t>(int)> same(const std::vector<std::int64_t>& shape) {
  return [shape](int) { return shape; };
}

/// The same tensor for every rank.
Tensors for_all(const at::Tensor& tensor) {
  return Tensors(index(ranks()), tensor);
}

at::Tensor total(const Tensors& tensors) {
  return at::stack(tensors).sum(0);
}

/// Rows a rank gets of `rows`, the first ranks one more.
std::vector<std::int64_t> divided(std::int64_t rows) {
  std::vector<std::int64_t> sizes(index(ranks()), rows / ranks());
  for (int rank = 0; rank < rows % ranks(); ++rank) ++sizes[index(rank)];
  return sizes;
}

/// Rows from rank `from` to rank `to`: uneven, and none from the last rank to itself.
std::int64_t routed(int from, int to) {
  return from == to && from == ranks() - 1 ? 0 : 1 + (2 * from + to) % 3;
}

std::vector<std::int64_t> routes(int from) {
  std::vector<std::int64_t> splits;
  for (int to = 0; to < ranks(); ++to) splits.push_back(routed(from, to));
  return splits;
}

std::int64_t sum_of(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

/// Alltoall of everybody's tensors by the splits of each rank.
Tensors exchanged(const Tensors& tensors,
                  const std::function<std::vector<std::int64_t>(int)>& splits) {
  std::vector<Tensors> parts(index(ranks()));
  for (int from = 0; from < ranks(); ++from) {
    const Tensors pieces = tensors[index(from)].split_with_sizes(splits(from));
    for (int to = 0; to < ranks(); ++to) parts[index(to)].push_back(pieces[index(to)]);
  }
  Tensors results;
  for (const Tensors& received : parts) results.push_back(at::cat(received));
  return results;
}

Case allreduce_case(const std::string& name, const ronde::AllreduceOptions& options,
                    const std::function<at::Tensor(const at::Tensor& stacked)>& reduce) {
  return {name, same({2, 3}),
          [options](const at::Tensor& tensor) { return ronde::allreduce(tensor, options); },
          [reduce](const Tensors& tensors) { return for_all(reduce(at::stack(tensors))); }};
}

std::vector<Case> allreduce_cases() {
  return {
      allreduce_case("sum", {.name = "s", .op = ReduceOp::Sum},
                     [](const at::Tensor& all) { return all.sum(0); }),
      allreduce_case("average", {}, [](const at::Tensor& all) { return all.mean(0); }),
      allreduce_case("scaled sum", {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = -3},
                     [](const at::Tensor& all) { return -1.5 * all.sum(0); }),
      allreduce_case("scaled average", {.name = "a", .prescale = 0.3, .postscale = 1.7},
                     [](const at::Tensor& all) { return 0.51 * all.mean(0); }),
      allreduce_case("min", {.name = "m", .op = ReduceOp::Min},
                     [](const at::Tensor& all) { return all.amin(0); }),
      allreduce_case("max", {.op = ReduceOp::Max},
                     [](const at::Tensor& all) { return all.amax(0); }),
      allreduce_case("product", {.op = ReduceOp::Product},
                     [](const at::Tensor& all) { return all.prod(0); }),
      {"in place on what autograd computed", same({4}),
       [](const at::Tensor& tensor) {
         at::Tensor twice = 2 * tensor;
         return ronde::allreduce_(twice, {.name = "in place"}) * tensor;
       },
       [](const Tensors& tensors) {
         Tensors results;
         for (const at::Tensor& tensor : tensors)
           results.push_back(2 * total(tensors) / ranks() * tensor);
         return results;
       }},
      {"in place on a view of it", same({3, 2}),
       [](const at::Tensor& tensor) {
         at::Tensor twice = 2 * tensor;
         ronde::allreduce_(twice.narrow(0, 1, 2).t(), {.op = ReduceOp::Sum});
         return twice;
       },
       [](const Tensors& tensors) {
         Tensors results;
         for (const at::Tensor& tensor : tensors) {
           results.push_back(2 * at::cat({tensor.narrow(0, 0, 1), total(tensors).narrow(0, 1, 2)}));
         }
         return results;
       }},
  };
}

std::vector<Case> broadcast_cases() {
  const int last = ranks() - 1;
  return {
      {"broadcast", same({5}),
       [](const at::Tensor& tensor) { return ronde::broadcast(tensor, {.name = "b"}); },
       [](const Tensors& tensors) { return for_all(tensors[0]); }},
      {"broadcast of a scalar from the last rank", same({}),
       [last](const at::Tensor& tensor) { return ronde::broadcast(tensor, {.root = last}); },
       [last](const Tensors& tensors) { return for_all(tensors[index(last)]); }},
      {"broadcast in place", same({2, 2}),
       [last](const at::Tensor& tensor) {
         at::Tensor copy = tensor.sin();
         return ronde::broadcast_(copy, {.root = last}) + tensor;
       },
       [last](const Tensors& tensors) {
         Tensors results;
         for (const at::Tensor& tensor : tensors) {
           results.push_back(tensors[index(last)].sin() + tensor);
         }
         return results;
       }},
  };
}

std::vector<Case> row_cases() {
  const auto gathered = [](const Tensors& tensors) { return for_all(at::cat(tensors)); };
  const auto allgather = [](const at::Tensor& tensor) { return ronde::allgather(tensor); };
  const auto scattered = [](double factor) {
    return [factor](const Tensors& tensors) {
      return Tensors((factor * total(tensors)).split_with_sizes(divided(tensors[0].size(0))));
    };
  };
  return {
      {"allgather", same({2, 3}), allgather, gathered},
      {"allgather of uneven rows, none on rank 0",
       [](int rank) {
         return std::vector<std::int64_t>{2 * rank, 2};
       },
       allgather, gathered},
      {"allgather of scalars", same({}), allgather,
       [](const Tensors& tensors) { return for_all(at::stack(tensors)); }},
      {"alltoall", same({2 * ranks(), 2}),
       [](const at::Tensor& tensor) { return ronde::alltoall(tensor); },
       [](const Tensors& tensors) {
         return exchanged(tensors,
                          [](int) { return std::vector<std::int64_t>(index(ranks()), 2); });
       }},
      {"alltoall with splits",
       [](int rank) {
         return std::vector<std::int64_t>{sum_of(routes(rank)), 1};
       },
       [](const at::Tensor& tensor) {
         return ronde::alltoall(tensor, routes(ronde::rank()), {.name = "routed"});
       },
       [](const Tensors& tensors) { return exchanged(tensors, routes); }},
      {"reducescatter sum", same({2 * ranks() + 1, 2}),
       [](const at::Tensor& tensor) {
         return ronde::reducescatter(tensor, {.name = "rs", .op = ReduceOp::Sum});
       },
       scattered(1)},
      {"reducescatter average, scaled", same({ranks() + 1}),
       [](const at::Tensor& tensor) {
         return ronde::reducescatter(tensor, {.prescale = 4, .postscale = 0.2});
       },
       scattered(0.8 / ranks())},
      {"reducescatter of fewer rows than ranks", same({1, 3}),
       [](const at::Tensor& tensor) { return ronde::reducescatter(tensor); },
       scattered(1.0 / ranks())},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = allreduce_cases();
  for (const auto& more : {broadcast_cases(), row_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

Tensors inputs(const Case& one) {
  Tensors tensors;
  for (int rank = 0; rank < ranks(); ++rank) {
    tensors.push_back(normal(one.shape(rank), 70 + static_cast<std::uint64_t>(rank)));
  }
  return tensors;
}

/// Another loss on each rank.
at::Tensor loss_of(int rank, const at::Tensor& result) {
  const at::Tensor weights = normal(result.sizes(), 90 + static_cast<std::uint64_t>(rank));
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
  at::Tensor tensor = inputs(one)[index(ronde::rank())].clone().requires_grad_();
  const at::Tensor loss = loss_of(ronde::rank(), one.collective(tensor));
  const at::Tensor gradient = torch::autograd::grad({loss}, {tensor}, {}, std::nullopt, twice)[0];
  if (!twice) return gradient;
  return defined(
      torch::autograd::grad({gradient.pow(3).sum()}, {tensor}, {}, std::nullopt, false, true)[0],
      tensor);
}

/// The sum of all ranks' losses if the tensor of this rank is `tensor`.
double loss_with(const Case& one, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor loss = loss_of(ronde::rank(), one.collective(tensor.clone()));
  return ronde::allreduce(loss, {.name = "loss", .op = ReduceOp::Sum}).item<double>();
}

/// By central differences: each element of each rank is moved in turn.
at::Tensor finite_differences(const Case& one) {
  constexpr double kStep = 1e-5;
  at::Tensor mine;
  for (int rank = 0; rank < ranks(); ++rank) {
    const bool is_mine = rank == ronde::rank();
    const at::Tensor tensor = inputs(one)[index(ronde::rank())];
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

}  // namespace

TEST_CASE("gradients of collectives are those of one process, and finite differences") {
  use_ronde();
  for (const Case& one : all_cases()) {
    CAPTURE(one.name);
    const at::Tensor gradient = gradient_here(one, false);
    const at::Tensor mine = inputs(one)[index(ronde::rank())];
    CHECK(
        near(gradient, defined(expected_gradients(one, false)[index(ronde::rank())], mine), 1e-12));
    CHECK(near(gradient, finite_differences(one), 1e-8));
  }
}

TEST_CASE("gradients of gradients of collectives are those of one process") {
  use_ronde();
  for (const Case& one : all_cases()) {
    CAPTURE(one.name);
    const at::Tensor mine = inputs(one)[index(ronde::rank())];
    CHECK(near(gradient_here(one, true),
               defined(expected_gradients(one, true)[index(ronde::rank())], mine), 1e-12));
  }
}

TEST_CASE("of equal least or greatest elements each has its part, and zeros are factors") {
  use_ronde();
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
  use_ronde();
  at::Tensor tensor = normal({4, 3}, 5).requires_grad_();
  const double all = ranks();
  ronde::allreduce(tensor.t(), {.op = ReduceOp::Sum}).sum().backward();
  CHECK(near(tensor.grad(), at::full({4, 3}, all, at::kDouble), 1e-12));
  tensor.mutable_grad().reset();
  ronde::allgather(tensor.t()).sum().backward();
  CHECK(near(tensor.grad(), at::full({4, 3}, all, at::kDouble), 1e-12));
  tensor.mutable_grad().reset();
  ronde::reducescatter(tensor.slice(0, 0, 4, 2).expand({2, 2, 3})).sum().backward();
  CHECK(near(tensor.grad().sum(), at::full({}, 12 / all, at::kDouble), 1e-12));
}

TEST_CASE("gradients have the dtype of their tensors") {
  use_ronde();
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

TEST_CASE("gradients in a process set go by its members and their order", "[n3]") {
  use_ronde();
  const ronde::ProcessSet set = ronde::add_process_set({2, 0});
  if (ronde::rank() != 1) {
    const bool first = ronde::rank() == 2;
    const at::Tensor x2 = normal({3}, 2);
    const at::Tensor x0 = normal({3}, 1);
    const at::Tensor w2 = normal({6}, 4);
    const at::Tensor w0 = normal({6}, 3);
    const auto check = [&](const char* name, const auto& collective, const at::Tensor& of_first,
                           const at::Tensor& of_second) {
      CAPTURE(name);
      const at::Tensor tensor = (first ? x2 : x0).clone().requires_grad_();
      const at::Tensor result = collective(tensor);
      (result * (first ? w2 : w0).narrow(0, 0, result.size(0))).sum().backward();
      CHECK(near(tensor.grad(), first ? of_first : of_second, 1e-12));
    };
    const at::Tensor sum = (w2 + w0).narrow(0, 0, 3);
    check(
        "broadcast", [&](const auto& x) { return ronde::broadcast(x, {.process_set = set}); }, sum,
        at::zeros({3}, at::kDouble));
    check(
        "average", [&](const auto& x) { return ronde::allreduce(x, {.process_set = set}); },
        sum / 2, sum / 2);
    check(
        "product",
        [&](const auto& x) {
          return ronde::allreduce(x, {.op = ReduceOp::Product, .process_set = set});
        },
        x0 * sum, x2 * sum);
    check(
        "allgather", [&](const auto& x) { return ronde::allgather(x, {.process_set = set}); },
        (w2 + w0).narrow(0, 0, 3), (w2 + w0).narrow(0, 3, 3));
    const at::Tensor rows = at::cat({w2.narrow(0, 0, 2), w0.narrow(0, 0, 1)}) / 2;
    check(
        "reducescatter",
        [&](const auto& x) { return ronde::reducescatter(x, {.process_set = set}); }, rows, rows);
    const at::Tensor copy = (first ? x2 : x0).clone();
    CHECK(torch::equal(ronde::broadcast_(copy, {.root = 1, .process_set = set}), x0));
  }
  ronde::remove_process_set(set);
}
