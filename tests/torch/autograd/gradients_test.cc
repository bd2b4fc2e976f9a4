// SPDX-License-Identifier: Apache-2.0
// The gradient of every collective, and gradients of gradients, in f64, against differences of what
// the ranks compute together.
#include <numeric>

#include "tests/torch/support.h"

namespace ronde_test::gradients_test {
namespace {

using Shape = std::vector<std::int64_t>;

struct Case {
  std::string name;
  std::function<Shape(int rank)> shape;
  std::function<at::Tensor(const at::Tensor& tensor)> collective;
};

/// The ranks of the cases: all, or this set, with its numbering.
ProcessSet here;

int ranks() {
  return static_cast<int>(ronde::ranks_of(here).size());
}

int own_rank() {
  return ronde::rank_in(here).value();
}

std::function<Shape(int)> same(const Shape& shape) {
  return [shape](int) { return shape; };
}

/// The matrix, the scalar and the vector that are a group in one flat tensor.
Tensors parts_of(const at::Tensor& flat) {
  const std::int64_t rest = flat.numel() - 4;
  return {flat.narrow(0, 0, rest).view({-1, 2}), flat[rest], flat.narrow(0, rest + 1, 3)};
}

at::Tensor joined(const Tensors& parts) {
  Tensors flat;
  for (const at::Tensor& part : parts) flat.push_back(part.reshape({-1}));
  return at::cat(flat);
}

/// Each op reduces one tensor, and a group.
std::vector<Case> allreduce_cases() {
  const std::vector<std::pair<std::string, AllreduceOptions>> rows = {
      {"sum", {.name = "s", .op = ReduceOp::Sum}},
      {"average", {}},
      {"scaled sum", {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = -3}},
      {"scaled average", {.name = "a", .prescale = 0.3, .postscale = 1.7}},
      {"min", {.name = "m", .op = ReduceOp::Min}},
      {"max", {.op = ReduceOp::Max}},
      {"product", {.name = "p", .op = ReduceOp::Product}}};
  std::vector<Case> cases;
  for (const auto& [name, row] : rows) {
    AllreduceOptions options = row;
    options.process_set = here;
    cases.push_back({name, same({2, 3}),
                     [options](const at::Tensor& t) { return ronde::allreduce(t, options); }});
    cases.push_back({name + " of a group", same({10}), [options](const at::Tensor& flat) {
                       return joined(ronde::grouped_allreduce(parts_of(flat), options));
                     }});
  }
  return cases;
}

/// Collectives in place on computed tensors, and a group of which each rank uses another part.
std::vector<Case> in_place_cases() {
  return {
      {"in place", same({4}),
       [](const at::Tensor& t) {
         at::Tensor twice = 2 * t;
         return ronde::allreduce_(twice, {.name = "in place", .process_set = here}) * t;
       }},
      {"in place on a view", same({3, 2}),
       [](const at::Tensor& t) {
         at::Tensor twice = 2 * t;
         ronde::allreduce_(twice.narrow(0, 1, 2).t(), {.op = ReduceOp::Sum, .process_set = here});
         return twice;
       }},
      {"group in place on views of one tensor", same({10}),
       [](const at::Tensor& flat) {
         const at::Tensor twice = 2 * flat;
         ronde::grouped_allreduce_(parts_of(twice), {.postscale = 3, .process_set = here});
         return twice * flat;
       }},
      {"broadcast in place", same({2, 2}),
       [](const at::Tensor& t) {
         at::Tensor copy = t.sin();
         return ronde::broadcast_(copy, {.root = ranks() - 1, .process_set = here}) + t;
       }},
      {"group in part", same({10}),
       [](const at::Tensor& flat) {
         Tensors sums = ronde::grouped_allreduce(parts_of(flat), {.process_set = here});
         sums.erase(sums.begin() + own_rank() % 3);
         return joined(sums);
       }},
  };
}

/// Rows from rank `from` to each rank: uneven, and none from the last rank to itself.
Shape routes(int from) {
  Shape splits;
  for (int to = 0; to < ranks(); ++to) splits.push_back(1 + (2 * from + to) % 3);
  if (from == ranks() - 1) splits.back() = 0;
  return splits;
}

std::vector<Case> moving_cases() {
  const auto uneven = [](int rank) { return Shape{2 * rank, 2}; };  // none on rank 0
  const auto group = [](int rank) { return Shape{4 + 4 * rank}; };
  const auto routed = [](int rank) {
    const Shape splits = routes(rank);
    return Shape{std::accumulate(splits.begin(), splits.end(), std::int64_t{0}), 1};
  };
  const auto allgather = [](const at::Tensor& t) {
    return ronde::allgather(t, {.process_set = here});
  };
  return {
      {"broadcast", same({5}),
       [](const at::Tensor& t) { return ronde::broadcast(t, {.name = "b", .process_set = here}); }},
      {"broadcast of a scalar from the last rank", same({}),
       [](const at::Tensor& t) {
         return ronde::broadcast(t, {.root = ranks() - 1, .process_set = here});
       }},
      {"allgather", same({2, 3}), allgather},
      {"allgather of uneven rows", uneven, allgather},
      {"allgather of scalars", same({}), allgather},
      {"allgather of a group, uneven rows", group,
       [](const at::Tensor& flat) {
         return joined(ronde::grouped_allgather(parts_of(flat), {.process_set = here}));
       }},
      {"alltoall", same({2 * ranks(), 2}),
       [](const at::Tensor& t) { return ronde::alltoall(t, {}, {.process_set = here}); }},
      {"alltoall with splits", routed,
       [](const at::Tensor& t) {
         return ronde::alltoall(t, routes(own_rank()), {.name = "routed", .process_set = here});
       }},
  };
}

std::vector<Case> reducescatter_cases() {
  const ronde::ReducescatterOptions average = {.process_set = here};
  const ronde::ReducescatterOptions sum = {.name = "rs", .op = ReduceOp::Sum, .process_set = here};
  const ronde::ReducescatterOptions scaled = {.prescale = 4, .postscale = 0.2, .process_set = here};
  const auto with = [](const ronde::ReducescatterOptions& options) {
    return [options](const at::Tensor& t) { return ronde::reducescatter(t, options); };
  };
  return {
      {"reducescatter sum", same({2 * ranks() + 1, 2}), with(sum)},
      {"reducescatter average, scaled", same({ranks() + 1}), with(scaled)},
      {"reducescatter of fewer rows than ranks", same({1, 3}), with(average)},
      {"reducescatter of a group, scaled average", same({10}),
       [scaled](const at::Tensor& flat) {
         Tensors parts = parts_of(flat);
         parts[1] = parts[1].reshape({1});
         return joined(ronde::grouped_reducescatter(parts, scaled));
       }},
  };
}

at::Tensor input(const Case& one) {
  return normal(one.shape(own_rank()), 70 + own_rank());
}

/// Returns this rank's loss, which differs from those of other ranks.
at::Tensor loss_of(int rank, const at::Tensor& result) {
  const at::Tensor weights = normal(result.sizes(), 90 + rank);
  return (weights * result.sin()).sum();
}

/// Returns the gradient of the sum of all ranks' losses for this rank's tensor.
at::Tensor gradient_of(const Case& one, const at::Tensor& tensor, bool create_graph) {
  const at::Tensor loss = loss_of(own_rank(), one.collective(tensor));
  return torch::autograd::grad({loss}, {tensor}, {}, std::nullopt, create_graph)[0];
}

/// Compares `gradient` with how the sum of all ranks' `part` changes as the tensor of one rank
/// after the other moves in some directions: central differences, whose error is of the sixth
/// order.
void check_slopes(const Case& one, const at::Tensor& gradient,
                  const std::function<at::Tensor(const at::Tensor& tensor)>& part) {
  constexpr double kStep = 4e-4;
  for (int rank = 0; rank < ranks(); ++rank) {
    for (const int seed : {200, 201, 202}) {
      const at::Tensor drawn = normal(one.shape(rank), seed);
      const at::Tensor direction = drawn / drawn.norm();
      const bool is_mine = rank == own_rank();
      const auto moved = [&](double steps) {
        const at::Tensor tensor = input(one);
        const at::Tensor mine = part(is_mine ? tensor + steps * kStep * direction : tensor);
        return ronde::allreduce(mine.detach(),
                                {.name = "sum", .op = ReduceOp::Sum, .process_set = here});
      };
      const at::Tensor differences =
          45 * (moved(1) - moved(-1)) - 9 * (moved(2) - moved(-2)) + (moved(3) - moved(-3));
      if (is_mine) CHECK(near((gradient * direction).sum(), differences / (60 * kStep), 1e-9));
    }
  }
}

void check_all_cases() {
  for (const auto& cases :
       {allreduce_cases(), in_place_cases(), moving_cases(), reducescatter_cases()}) {
    for (const Case& one : cases) {
      CAPTURE(one.name);
      const at::Tensor tensor = input(one).requires_grad_();
      const at::Tensor gradient = gradient_of(one, tensor, /*create_graph=*/true);
      check_slopes(one, gradient.detach(), [&](const at::Tensor& moved) {
        return loss_of(own_rank(), one.collective(moved));
      });
      const at::Tensor twice = torch::autograd::grad({gradient.pow(3).sum()}, {tensor}, {},
                                                     std::nullopt, false, /*allow_unused=*/true)[0];
      check_slopes(one, twice.defined() ? twice : at::zeros_like(tensor),
                   [&](const at::Tensor& moved) {
                     return gradient_of(one, moved.clone().requires_grad_(), false).pow(3).sum();
                   });
    }
  }
}

TEST_CASE("gradients of collectives, and of gradients, are those of finite differences") {
  check_all_cases();
}

TEST_CASE("gradients in a process set go by its members and their order", "[n3]") {
  const ProcessSet set = ronde::add_process_set({2, 0});
  if (ronde::rank_in(set)) {
    here = set;
    check_all_cases();
    here = {};
  }
  ronde::remove_process_set(set);
}

TEST_CASE("of equal least or greatest elements each has its part, and zeros are factors") {
  const auto values = [](int rank) {
    // Equal everywhere, equal on all ranks but 0, zero on rank 0, zero on all.
    return at::tensor({2.0, rank == 0 ? 1.0 : 5.0, rank == 0 ? 0.0 : 3.0, 0.0}, at::kDouble);
  };
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
    CAPTURE(to_string(op));
    const Tensors all = by_rank([&](int rank) { return values(rank).requires_grad_(); });
    const at::Tensor result = reduced(op, at::stack(all));
    at::stack(by_rank([&](int rank) { return loss_of(rank, result); })).sum().backward();
    const at::Tensor mine = values(ronde::rank()).requires_grad_();
    loss_of(ronde::rank(), ronde::allreduce(mine, {.op = op})).backward();
    CHECK(near(mine.grad(), mine_of(all).grad(), 1e-12));
  }
}

TEST_CASE("tensors of any strides and gradients that are expanded will do") {
  at::Tensor tensor = normal({4, 3}, 5).requires_grad_();
  const double all = ronde::size();
  ronde::allreduce(tensor.t(), {.op = ReduceOp::Sum}).sum().backward();
  CHECK(near(tensor.grad(), full({4, 3}, all), 1e-12));
  tensor.mutable_grad().reset();
  ronde::allgather(tensor.t()).sum().backward();
  CHECK(near(tensor.grad(), full({4, 3}, all), 1e-12));
  tensor.mutable_grad().reset();
  ronde::reducescatter(tensor.slice(0, 0, 4, 2).expand({2, 2, 3})).sum().backward();
  CHECK(near(tensor.grad().sum(), full({}, 12 / all), 1e-12));
}

}  // namespace
}  // namespace ronde_test::gradients_test
