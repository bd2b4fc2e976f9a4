// SPDX-License-Identifier: Apache-2.0
// LibTorch's caching allocator and the registration cache: tensors come and go at the same
// addresses.
#include <cstdint>
#include <cstdlib>

#include "tests/torch/device/cases.h"
#include "tests/torch/support.h"

using namespace ronde_test;

TEST_CASE("device: what emptyCache frees and the allocator takes anew meets no stale registration",
          "[own]") {
  // The one whose cache it is, whatever else there is.
  ::setenv("RONDE_GPU_BACKEND", "cuda", 1);
  if (!use_device()) return;
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
