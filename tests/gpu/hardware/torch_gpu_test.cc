// SPDX-License-Identifier: Apache-2.0
// What only LibTorch's own device has: an allocator that keeps memory, by which tensors come and go
// at the same addresses beside the registration cache, and sparse tensors.
#include <cstdint>
#include <cstdlib>

#include "tests/torch/device/cases.h"
#include "tests/torch/support.h"

using namespace ronde_test;

TEST_CASE("device: what emptyCache frees and the allocator takes anew meets no stale registration",
          "[own]") {
  // The one whose cache it is, whatever else there is.
  ::setenv("RONDE_GPU_BACKEND", "cuda", 1);
  use_device();
  const int ranks = ronde::size();
  for (int round = 0; round < 60; ++round) {
    // Of other sizes in turn, so that addresses repeat with other allocations behind them.
    const std::int64_t count = (1 + round % 7) * std::int64_t{1} << 20;
    const at::Tensor tensor = at::full({count}, ronde::rank() + round, device());
    ronde::allreduce_(tensor, {.op = ronde::ReduceOp::Sum});
    const double expected = ranks * (ranks - 1) / 2.0 + static_cast<double>(ranks) * round;
    REQUIRE(at::equal(tensor.cpu(), at::full({count}, expected)));
    if (round % 3 != 0) continue;
    ronde::barrier();
    empty_cache();
  }
  if (ranks == 1) return;
  CHECK(counted("cuda", "direct") > 0);
}

TEST_CASE("device: sparse gradients are those on the CPU") {
  use_device();
  const auto train = [](c10::Device where) {
    torch::manual_seed(3);
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(20, 4).sparse(true));
    table->to(where);
    auto optimizer = wrapped_sgd(table->named_parameters(), {}, 0.5);
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
