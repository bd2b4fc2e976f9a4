// SPDX-License-Identifier: Apache-2.0
// Tensors on a device, in streams, against the same on the CPU.
#include "tests/torch/device/cases.h"

#include <c10/core/StreamGuard.h>

#include "tests/torch/layouts.h"

using namespace ronde_test;

namespace {

at::Tensor on_device(const at::Tensor& tensor) {
  return tensor.to(device());
}

bool is(const at::Tensor& tensor, const at::Tensor& expected) {
  return tensor.device() == device() &&
         at::equal(tensor.cpu().to(at::kDouble), expected.to(at::kDouble));
}

TEST_CASE("device: collectives of all types are those of the CPU") {
  use_device();
  const int ranks = ronde::size();
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t rows : {0L, 1L, 6L, 1000L}) {
      CAPTURE(at::toString(dtype), rows);
      const Tensors all = numbers_of_all({rows * ranks, 3}, dtype);
      const at::Tensor mine = on_device(mine_of(all)), sum = sum_of(all);
      const auto part = [&](const at::Tensor& whole) {
        return whole.narrow(0, ronde::rank() * rows, rows);
      };
      CHECK(is(ronde::allreduce(mine, {.op = ReduceOp::Sum}), sum));
      CHECK(is(ronde::broadcast(mine, {.root = ranks - 1}), all.back()));
      CHECK(is(ronde::allgather(mine), torch::cat(all)));
      CHECK(is(ronde::reducescatter(mine, {.op = ReduceOp::Sum}), part(sum)));
      CHECK(is(ronde::alltoall(mine, {}),
               torch::cat(by_rank([&](int rank) { return part(all[index(rank)]); }))));
      for (const at::Tensor& each :
           ronde::grouped_allreduce({mine, mine.clone()}, {.op = ReduceOp::Sum})) {
        CHECK(is(each, sum));
      }
    }
  }
}

TEST_CASE("device: tensors that are not row-major are reduced in place") {
  use_device();
  for (int step = 0; step < 5; ++step) {
    const Tensors all = numbers_of_all({64, 48});
    const at::Tensor tensor = column_major(on_device(mine_of(all)));
    REQUIRE(!tensor.is_contiguous());
    CHECK(ronde::allreduce_(tensor, {.op = ReduceOp::Sum}).is_same(tensor));
    CHECK(is(tensor, sum_of(all)));
    // No stream waits: copying back is part of the operation.
    const at::Tensor other = column_major(on_device(mine_of(all)));
    ronde::allreduce_async_(other, {.op = ReduceOp::Sum}).wait_host();
    const c10::StreamGuard guard(side_stream());
    CHECK(is(other, sum_of(all)));
  }
}

TEST_CASE("device: what is queued before is waited for, and what is queued after waits") {
  use_device();
  constexpr std::int64_t kCount = 1 << 16;
  for (int step = 1; step <= 5; ++step) {
    const at::Tensor tensor = at::zeros({kCount}, device());
    const at::Tensor seen = at::zeros({kCount}, device());
    const c10::Stream produces = side_stream();
    TensorWork work;
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
      CHECK(is(seen, at::full({kCount}, step * sum_to_size())));
    }
  }
}

TEST_CASE("device: results that the engine makes belong to the stream of the caller") {
  use_device();
  for (int step = 0; step < 20; ++step) {
    const Tensors gathered = numbers_of_all({200 + step, 7});
    const Tensors scattered = numbers_of_all({ronde::size() * 5, 3});
    const c10::StreamGuard guard(side_stream());
    const auto first = ronde::allgather_async(on_device(mine_of(gathered)));
    const auto second =
        ronde::reducescatter_async(on_device(mine_of(scattered)), {.op = ReduceOp::Sum});
    CHECK(is(first.wait(), torch::cat(gathered)));
    CHECK(is(second.wait(), mine_of(sum_of(scattered).split(5))));
    empty_cache();
  }
}

TEST_CASE("device: memory that the program drops stays until the device is through with it") {
  use_device();
  constexpr std::int64_t kCount = 1 << 16;
  std::vector<at::Tensor> results;
  for (int step = 0; step < 30; ++step) {
    at::Tensor input = at::empty({kCount}, device());
    fill_late(input, ronde::rank() + 1);
    TensorWork work = ronde::allreduce_async(input, {.op = ReduceOp::Sum});
    input.reset();
    at::full({kCount}, -1.0, device());  // in the memory of the input, if that were free
    if (step % 5 == 0) empty_cache();
    if (step % 3 == 0) results.push_back(work.wait());
  }
  for (const at::Tensor& result : results) CHECK(is(result, at::full({kCount}, sum_to_size())));
}

TEST_CASE("device: messages go from device to device") {
  use_device();
  if (ronde::size() < 2) return;
  const Tensors all = numbers_of_all({100});
  const at::Tensor mine = on_device(mine_of(all));
  if (ronde::rank() == 0) ronde::send(mine, {.peer = 1});
  if (ronde::rank() == 1) {
    CHECK(ronde::recv_(mine, {.peer = ronde::kAnyRank}) == 0);
    CHECK(is(mine, all[0]));
  }
}

torch::nn::Sequential make_net(c10::Device where) {
  torch::manual_seed(5);
  torch::nn::Sequential net({{"first", torch::nn::Linear(20, 30)},
                             {"relu", torch::nn::ReLU()},
                             {"second", torch::nn::Linear(30, 4)}});
  net->to(where);
  return net;
}

/// The parameters after some steps with data of this rank, on `where`.
at::Tensor trained(c10::Device where, DistributedOptimizerOptions options) {
  torch::nn::Sequential net = make_net(where);
  auto optimizer = wrapped_sgd(net->named_parameters(), std::move(options),
                               torch::optim::SGDOptions(0.1).momentum(0.9));
  ronde::broadcast_parameters(*net, 0);
  for (int step = 0; step < 8; ++step) {
    const int seed = 100 * step + ronde::rank();
    const at::Tensor input = normal({16, 20}, seed, at::kFloat).to(where);
    const at::Tensor target = normal({16, 4}, seed + 50, at::kFloat).to(where);
    optimizer.zero_grad();
    (net->forward(input) - target).square().mean().backward();
    optimizer.step();
  }
  return flatten(net->parameters()).cpu();
}

TEST_CASE("device: an optimizer's steps are those on the CPU") {
  use_device();
  const std::vector<DistributedOptimizerOptions> rows = {
      {}, {.groups = 2}, {.find_nonfinite = true}};
  for (const DistributedOptimizerOptions& options : rows) {
    const at::Tensor there = trained(device(), options);
    CHECK(near(there, trained(at::kCPU, options), 1e-5));
    CHECK(same_on_all_ranks(there));
  }
}

TEST_CASE("device: an optimizer with Adasum names the parameter that is not on the CPU") {
  use_device();
  torch::nn::Sequential net = make_net(device());
  check_refused([&] { wrapped_sgd(net->named_parameters(), {.op = ReduceOp::Adasum}); },
                {"\"first.weight\" (f32 [30, 20] on cuda): Adasum is computed on the CPU"});
}

}  // namespace
