// SPDX-License-Identifier: Apache-2.0
// When autograd records a collective, what it refuses, and what its operations in backward are
// called.
#include "tests/torch/support.h"

namespace ronde_test::recording_test {
namespace {

at::Tensor leaf() {
  return full({3, 2}, ronde::rank() + 1.0).requires_grad_();
}

TEST_CASE("results require grad if autograd records the tensor, and not otherwise") {
  const at::Tensor tensor = leaf();
  const auto splits = by_rank([](int rank) { return rank == 0 ? std::int64_t{3} : 0; });
  const auto check = [&](const at::Tensor& input, const auto& holds) {
    for (const at::Tensor& result :
         {ronde::allreduce(input), ronde::broadcast(input), ronde::allgather(input),
          ronde::reducescatter(input), ronde::alltoall(input, splits),
          ronde::grouped_allreduce({input})[0], ronde::grouped_allgather({input})[0],
          ronde::grouped_reducescatter({input})[0]}) {
      CHECK(holds(result));
    }
  };
  const auto is_recorded = [](const at::Tensor& result) { return result.requires_grad(); };
  const auto is_plain = [](const at::Tensor& result) { return !result.requires_grad(); };
  check(tensor, is_recorded);
  check(tensor.detach(), is_plain);
  {
    const at::NoGradGuard no_grad;
    check(tensor, is_plain);
  }
  {
    const c10::InferenceMode inference;
    check(tensor, [](const at::Tensor& result) { return result.is_inference(); });
  }
  for (const at::Tensor& result :
       {ronde::allreduce_async(tensor).wait(), ronde::broadcast_async(tensor).wait(),
        ronde::allgather_async(tensor).wait(), ronde::reducescatter_async(tensor).wait(),
        ronde::alltoall_async(tensor, splits).wait(),
        ronde::grouped_allreduce_async({tensor}).wait()[0],
        ronde::grouped_allgather_async({tensor}).wait()[0],
        ronde::grouped_reducescatter_async({tensor}).wait()[0]}) {
    CHECK(is_plain(result));
  }
}

TEST_CASE("a group is recorded where one of its tensors is, and keeps none of them") {
  const double all = ronde::size();
  const at::Tensor tensor = leaf();
  Tensors inputs = {at::ones({2}), tensor * 3, at::full({2}, 5, at::kLong)};
  const c10::weak_intrusive_ptr<c10::TensorImpl> plain(inputs[0].getIntrusivePtr());
  const c10::weak_intrusive_ptr<c10::TensorImpl> computed(inputs[1].getIntrusivePtr());
  Tensors sums = ronde::grouped_allreduce(inputs, {.name = "mixed", .op = ReduceOp::Sum});
  CHECK(sums[0].requires_grad());
  CHECK(sums[1].requires_grad());
  CHECK_FALSE(sums[2].requires_grad());
  CHECK(torch::equal(sums[0].detach(), at::full({2}, all)));
  CHECK(torch::equal(sums[2], at::full({2}, 5 * ronde::size(), at::kLong)));
  inputs.clear();
  CHECK(plain.expired());
  CHECK(computed.expired());
  const std::weak_ptr<torch::autograd::Node> graph = sums[1].grad_fn();
  sums[1].sum().backward();
  CHECK(near(tensor.grad(), full({3, 2}, 3 * all), 1e-12));
  sums.clear();
  CHECK(graph.expired());
}

TEST_CASE("a leaf and its views are written in place without a record, and backward notices") {
  const at::Tensor tensor = leaf(), square = tensor.square();
  const double sum = sum_to_size(), all = ronde::size();
  const auto check_leaf = [&](double value) {
    CHECK(tensor.is_leaf());
    CHECK(tensor.requires_grad());
    CHECK(torch::equal(tensor.detach(), full({3, 2}, value)));
  };
  ronde::allreduce_(tensor, {.op = ReduceOp::Sum});
  check_leaf(sum);
  CHECK_THROWS_AS(square.sum().backward(), c10::Error);
  ronde::allreduce_async_(tensor.view({-1}), {.op = ReduceOp::Sum}).wait();
  ronde::broadcast_(tensor.narrow(0, 0, 1));
  check_leaf(sum * all);
  // A group may mix it with a computed tensor, which is recorded.
  const at::Tensor other = leaf(), computed = other * 2, saved = computed.square();
  const at::Tensor plain = at::ones({4}, at::kLong);
  const auto version = tensor._version();
  ronde::grouped_allreduce_({tensor, computed, plain, tensor.new_ones({2})}, {.op = ReduceOp::Sum});
  check_leaf(sum * all * all);
  CHECK(tensor._version() > version);
  CHECK(torch::equal(plain, at::full({4}, ronde::size(), at::kLong)));
  CHECK(torch::equal(computed.detach(), full({3, 2}, 2 * sum)));
  CHECK_THROWS_AS(saved.sum().backward({}, /*retain_graph=*/true), c10::Error);
  computed.sum().backward();
  CHECK(near(other.grad(), full({3, 2}, 2 * all), 1e-12));
  CHECK_FALSE(tensor.grad().defined());
  // A group of leaves alone is not recorded.
  ronde::grouped_allreduce_({tensor}, {.op = ReduceOp::Max});
  check_leaf(sum * all * all);
}

TEST_CASE("what has no gradient is refused before anything is sent, with a way out") {
  const at::Tensor tensor = leaf(), computed = tensor * 2, part = computed.split(1)[0];
  const Tensors one = {tensor};
  const Tensors both = {tensor, computed}, viewed = {tensor, part}, odd = {tensor, {}};
  const AllreduceOptions scaled = {.name = "m", .op = ReduceOp::Max, .prescale = 2};
  const AllreduceOptions max = {.op = ReduceOp::Max};
  const AllreduceOptions adasum = {.op = ReduceOp::Adasum};
  const ronde::ReducescatterOptions min = {.op = ReduceOp::Min};
  const std::vector<std::pair<std::function<void()>, std::vector<std::string>>> rows = {
      {[&] { ronde::allreduce(tensor, scaled); },
       {"ronde::allreduce(\"m\")", "a scaled max has no gradient", "detach()"}},
      {[&] { ronde::allreduce_(computed, max); },
       {"ronde::allreduce_(unnamed)", "a max in place has no gradient"}},
      {[&] { ronde::reducescatter(tensor, min); },
       {"ronde::reducescatter(unnamed)", "a min has no gradient", "NoGradGuard"}},
      {[&] { ronde::reducescatter(tensor, {.op = ReduceOp::Product}); },
       {"a product has no gradient"}},
      {[&] { ronde::allreduce(tensor, adasum); },
       {"ronde::allreduce(unnamed)", "an adasum has no gradient", "NoGradGuard"}},
      {[&] { ronde::grouped_allreduce_({computed}, adasum); },
       {"ronde::grouped_allreduce_(unnamed)", "an adasum in place has no gradient"}},
      {[&] { ronde::allreduce_async_(computed); },
       {"ronde::allreduce_async_(unnamed)", "would not know that it changes", "allreduce_()"}},
      {[&] { ronde::broadcast_async_(computed, {.name = "b"}); },
       {"ronde::broadcast_async_(\"b\")", "broadcast_()"}},
      {[&] { ronde::allreduce_(part); }, {"ronde::allreduce_(unnamed): ", "view", "inplace"}},
      {[&] { ronde::grouped_allreduce(one, scaled); },
       {"ronde::grouped_allreduce(\"m\")", "a scaled max has no gradient", "detach()"}},
      {[&] { ronde::grouped_allreduce_(both, max); },
       {"ronde::grouped_allreduce_(unnamed)", "a max in place has no gradient"}},
      {[&] { ronde::grouped_reducescatter(one, min); },
       {"ronde::grouped_reducescatter(unnamed)", "a min has no gradient", "NoGradGuard"}},
      {[&] { ronde::grouped_allreduce_async_(both, {.name = "g"}); },
       {"ronde::grouped_allreduce_(\"g\"), tensor 1", "would not know that it changes",
        "Call grouped_allreduce_()"}},
      {[&] { ronde::grouped_allreduce_(viewed); },
       {"ronde::grouped_allreduce_(unnamed), tensor 1: ", "view", "inplace"}},
      {[&] { ronde::grouped_allgather(odd, {.name = "u"}); },
       {"ronde::grouped_allgather(\"u\"), tensor 1", "undefined"}},
  };
  for (const auto& [call, parts] : rows) check_refused(call, parts);
  // All of these work where nothing is recorded.
  const at::NoGradGuard no_grad;
  ronde::allreduce(tensor, scaled);
  ronde::allreduce(tensor, adasum);
  ronde::reducescatter(tensor, min);
  ronde::grouped_allreduce(one, scaled);
  ronde::grouped_reducescatter(one, min);
  ronde::allreduce_async_(computed).wait();
  ronde::grouped_allreduce_async_({computed}).wait();
}

// Needs its own process: earlier unnamed operations in the cache would count as misses.
TEST_CASE("several uses in one graph are kept apart, and every step is as the first", "[own]") {
  use_ronde();
  const double all = ronde::size();
  const at::Tensor tensor = leaf();
  std::uint64_t misses = 0;  // in backward: in forward the name of two shapes misses each time
  for (int step = 0; step < 30; ++step) {
    tensor.mutable_grad().reset();
    // One name for tensors of two shapes, no name for two, and one that backward does not reach.
    const at::Tensor wide = ronde::allreduce(tensor, {.name = "h", .op = ReduceOp::Sum});
    const at::Tensor small = ronde::allreduce(wide.sum(0), {.name = "h", .op = ReduceOp::Sum});
    const at::Tensor unnamed = ronde::allreduce(tensor * 3, {.op = ReduceOp::Sum});
    const at::Tensor rows = ronde::allgather(unnamed);
    ronde::allreduce(tensor, {.name = "looked at"});
    Tensors group = {tensor.sum(), tensor * 2};
    for (int use = 0; use < 2; ++use) {
      group = ronde::grouped_allreduce(group, {.name = "g", .op = ReduceOp::Sum});
    }
    const std::uint64_t before = counted("response_cache", "misses");
    (small.sum() + rows.sum() + group[1].sum()).backward();
    if (step > 0) misses += counted("response_cache", "misses") - before;
    CHECK(near(tensor.grad(), full({3, 2}, 6 * all * all), 1e-12));
  }
  CHECK(misses == 0);
}

TEST_CASE("the gradients of a group are sent as a group, all or none", "[n2]") {
  const at::Tensor tensor = leaf();
  const Tensors sums =
      ronde::grouped_allreduce({tensor, tensor * 2}, {.name = "one", .op = ReduceOp::Sum});
  const at::Tensor loss = sums[0].sum() + sums[1].sum();
  // Single operations of the same names do not match it.
  if (ronde::rank() == 0) {
    check_refused([&] { loss.backward({}, /*retain_graph=*/true); },
                  {"rank 0: a group of 2: 'gradient of grouped_allreduce 'one'.0' "});
  } else {
    std::vector<TensorWork> works;
    for (const char* const number : {"0", "1"}) {
      works.push_back(ronde::allreduce_async(
          at::zeros({3, 2}, at::kDouble),
          {.name = std::string("gradient of grouped_allreduce 'one'.") + number,
           .op = ReduceOp::Sum}));
    }
    for (const TensorWork& work : works) {
      check_refused([&] { work.wait(); }, {"rank 0: a group of 2: "});
    }
  }
  CHECK_FALSE(tensor.grad().defined());
  loss.backward();
  CHECK(near(tensor.grad(), full({3, 2}, 6.0), 1e-12));
}

TEST_CASE("a tensor that one rank cannot send leaves the names of later gradients alone", "[n2]") {
  const at::Tensor tensor = leaf();
  if (ronde::rank() == 1) {
    const at::Tensor sparse = at::ones({2, 2}).to_sparse().requires_grad_();
    check_refused([&] { ronde::allreduce(sparse, {.name = "odd"}); }, {"not dense"});
  }
  ronde::allreduce(tensor, {.name = "odd", .op = ReduceOp::Sum}).sum().backward();
  CHECK(near(tensor.grad(), full({3, 2}, 2.0), 1e-12));
}

}  // namespace
}  // namespace ronde_test::recording_test
