// SPDX-License-Identifier: Apache-2.0
// Tensors on a device, in streams, against the same on the CPU.
#include "cases.h"

#include <c10/core/StreamGuard.h>

#include <utility>

#include "support.h"

using namespace ronde_test;
using ronde::ReduceOp;

namespace {

const std::vector<at::ScalarType> kTypes = {at::kByte, at::kChar,    at::kShort, at::kInt,
                                            at::kLong, at::kHalf,    at::kFloat, at::kDouble,
                                            at::kBool, at::kBFloat16};

/// Small integers that depend on the rank, exact in every type; on the CPU.
at::Tensor numbers(at::IntArrayRef sizes, int rank, at::ScalarType dtype) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return ((torch::arange(count, at::kLong) + 3 * rank) % (dtype == at::kBool ? 2 : 7))
      .view(sizes)
      .to(dtype);
}

at::Tensor on_device(const at::Tensor& tensor) {
  return tensor.to(device());
}

/// Of what all ranks have, in f64.
at::Tensor sum(at::IntArrayRef sizes, at::ScalarType dtype) {
  at::Tensor total = numbers(sizes, 0, dtype).to(at::kDouble);
  for (int rank = 1; rank < ronde::size(); ++rank) {
    total += numbers(sizes, rank, dtype).to(at::kDouble);
  }
  return dtype == at::kBool ? total.clamp(0, 1) : total;
}

bool is(const at::Tensor& tensor, const at::Tensor& expected) {
  return tensor.device() == device() &&
         at::equal(tensor.cpu().to(at::kDouble), expected.to(at::kDouble));
}

at::Tensor joined(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ronde::size(); ++rank) parts.push_back(numbers(sizes, rank, dtype));
  return torch::cat(parts);
}

}  // namespace

TEST_CASE("device: collectives of all types are those of the CPU") {
  if (!use_device()) return;
  const int ranks = ronde::size();
  for (const at::ScalarType dtype : kTypes) {
    CAPTURE(at::toString(dtype));
    for (const std::int64_t rows : {0L, 1L, 6L, 1000L}) {
      const std::vector<std::int64_t> sizes = {rows * ranks, 3};
      const at::Tensor mine = on_device(numbers(sizes, ronde::rank(), dtype));
      CHECK(is(ronde::allreduce(mine, {.op = ReduceOp::Sum}), sum(sizes, dtype)));
      CHECK(is(ronde::broadcast(mine, {.root = ranks - 1}), numbers(sizes, ranks - 1, dtype)));
      CHECK(is(ronde::allgather(mine), joined(sizes, dtype)));
      CHECK(is(ronde::reducescatter(mine, {.op = ReduceOp::Sum}),
               sum(sizes, dtype).narrow(0, ronde::rank() * rows, rows)));
      std::vector<at::Tensor> to_me;
      for (int rank = 0; rank < ranks; ++rank) {
        to_me.push_back(numbers(sizes, rank, dtype).narrow(0, ronde::rank() * rows, rows));
      }
      CHECK(is(ronde::alltoall(mine, {}), torch::cat(to_me)));
      for (const at::Tensor& each :
           ronde::grouped_allreduce({mine, mine.clone()}, {.op = ReduceOp::Sum})) {
        CHECK(is(each, sum(sizes, dtype)));
      }
    }
  }
}

TEST_CASE("device: tensors that are not row-major are reduced in place") {
  if (!use_device()) return;
  for (int step = 0; step < 5; ++step) {
    const std::vector<std::int64_t> sizes = {64, 48};
    at::Tensor tensor = on_device(numbers(sizes, ronde::rank(), at::kFloat)).t().contiguous().t();
    REQUIRE(!tensor.is_contiguous());
    CHECK(ronde::allreduce_(tensor, {.op = ReduceOp::Sum}).is_same(tensor));
    CHECK(is(tensor, sum(sizes, at::kFloat)));
    // Nobody waits on a stream: what copies it back is part of the operation.
    at::Tensor other = on_device(numbers(sizes, ronde::rank(), at::kFloat)).t().contiguous().t();
    ronde::allreduce_async_(other, {.op = ReduceOp::Sum}).wait_host();
    const c10::StreamGuard guard(side_stream());
    CHECK(is(other, sum(sizes, at::kFloat)));
  }
}

TEST_CASE("device: what is queued before is waited for, and what is queued after waits") {
  if (!use_device()) return;
  constexpr std::int64_t kCount = 1 << 16;
  for (int step = 1; step <= 5; ++step) {
    const at::Tensor tensor = at::zeros({kCount}, device());
    const at::Tensor seen = at::zeros({kCount}, device());
    const c10::Stream produces = side_stream();
    ronde::TensorWork work;
    {
      const c10::StreamGuard guard(produces);
      fill_late(tensor, step * (ronde::rank() + 1));
      work = ronde::allreduce_async_(tensor, {.op = ReduceOp::Sum});
    }
    {
      const c10::StreamGuard guard(side_stream());
      const at::Tensor result = work.wait();
      CHECK(result.is_same(tensor));
      seen.copy_(result);
      const at::Tensor expected =
          at::full({kCount}, step * ronde::size() * (ronde::size() + 1) / 2, at::kFloat);
      CHECK(is(seen, expected));
    }
  }
}

TEST_CASE("device: results that the engine makes belong to the stream of the caller") {
  if (!use_device()) return;
  for (int step = 0; step < 20; ++step) {
    const std::vector<std::int64_t> sizes = {200 + step, 7};
    const c10::StreamGuard guard(side_stream());
    const at::Tensor mine = on_device(numbers(sizes, ronde::rank(), at::kFloat));
    const auto first = ronde::allgather_async(mine);
    const auto second = ronde::reducescatter_async(
        on_device(numbers({ronde::size() * 5, 3}, ronde::rank(), at::kFloat)),
        {.op = ReduceOp::Sum});
    CHECK(is(first.wait(), joined(sizes, at::kFloat)));
    CHECK(
        is(second.wait(),
           sum({ronde::size() * 5, 3}, at::kFloat).narrow(0, ronde::rank() * std::int64_t{5}, 5)));
    empty_cache();
  }
}

TEST_CASE("device: memory that the program drops stays until the device is through with it") {
  if (!use_device()) return;
  constexpr std::int64_t kCount = 1 << 16;
  std::vector<at::Tensor> results;
  for (int step = 0; step < 30; ++step) {
    at::Tensor input = at::empty({kCount}, device());
    fill_late(input, ronde::rank() + 1);
    ronde::TensorWork work = ronde::allreduce_async(input, {.op = ReduceOp::Sum});
    input.reset();
    at::full({kCount}, -1.0, device());  // in the memory of the input, if that were free
    if (step % 5 == 0) empty_cache();
    if (step % 3 == 0) results.push_back(work.wait());
  }
  const double expected = ronde::size() * (ronde::size() + 1) / 2.0;
  for (const at::Tensor& result : results) CHECK(is(result, at::full({kCount}, expected)));
}

TEST_CASE("device: messages go from device to device") {
  if (!use_device() || ronde::size() < 2) return;
  const at::Tensor mine = on_device(numbers({100}, ronde::rank(), at::kFloat));
  if (ronde::rank() == 0) ronde::send(mine, {.peer = 1});
  if (ronde::rank() == 1) {
    CHECK(ronde::recv_(mine, {.peer = ronde::kAnyRank}) == 0);
    CHECK(is(mine, numbers({100}, 0, at::kFloat)));
  }
}

namespace {

struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(20, 30));
    second = register_module("second", torch::nn::Linear(30, 4));
  }
  at::Tensor forward(const at::Tensor& input) {
    return second->forward(torch::relu(first->forward(input)));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

/// The parameters after some steps with data of this rank, on `where`.
at::Tensor trained(c10::Device where, ronde::DistributedOptimizerOptions options) {
  Net net;
  net.to(where);
  torch::optim::SGD inner(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  ronde::DistributedOptimizer optimizer(inner, net.named_parameters(), std::move(options));
  ronde::broadcast_parameters(net, 0);
  for (int step = 0; step < 8; ++step) {
    const auto seed = static_cast<std::uint64_t>(100 * step + ronde::rank());
    const at::Tensor input = normal({16, 20}, seed, at::kFloat).to(where);
    const at::Tensor target = normal({16, 4}, seed + 50, at::kFloat).to(where);
    optimizer.zero_grad();
    (net.forward(input) - target).square().mean().backward();
    optimizer.step();
  }
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : net.parameters()) parameters.push_back(parameter.cpu());
  return flatten(parameters);
}

}  // namespace

TEST_CASE("device: an optimiser's steps are those on the CPU") {
  if (!use_device()) return;
  const auto check_alike = [](const ronde::DistributedOptimizerOptions& options) {
    const at::Tensor there = trained(device(), options);
    CHECK(near(there, trained(at::kCPU, options), 1e-5));
    CHECK(same_on_all_ranks(there));
  };
  check_alike({});
  check_alike({.groups = 2});
  check_alike({.find_nonfinite = true});
}

TEST_CASE("device: an optimiser with Adasum names the parameter that is not on the CPU") {
  if (!use_device()) return;
  Net net;
  net.to(device());
  torch::optim::SGD inner(net.parameters(), 0.1);
  const std::string text = usage_error([&] {
    const ronde::DistributedOptimizer optimizer(inner, net.named_parameters(),
                                                {.op = ReduceOp::Adasum});
  });
  CHECK(contains(text, "\"first.weight\" (f32 [30, 20] on cuda): Adasum is computed on the CPU"));
}

TEST_CASE("device: sparse gradients are those on the CPU") {
  if (!use_device() || !is_complete()) return;
  const auto train = [](c10::Device where) {
    torch::manual_seed(3);
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(20, 4).sparse(true));
    table->to(where);
    torch::optim::SGD inner(table->parameters(), 0.5);
    ronde::DistributedOptimizer optimizer(inner, table->named_parameters());
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      const at::Tensor rows = torch::arange(3, at::kLong) * (ronde::rank() + 1) + step;
      table->forward(rows.to(where)).sum().backward();
      optimizer.step();
    }
    return table->weight.detach().cpu();
  };
  CHECK(near(train(device()), train(at::kCPU), 1e-6));
}
