// SPDX-License-Identifier: Apache-2.0
// ReduceOp::Adasum on tensors.
#include <vector>

#include "support.h"

using namespace ronde_test;
using ronde::ReduceOp;

TEST_CASE("adasum of tensors is that of pairs of neighbours, whatever their layout") {
  use_ronde();
  const auto of_rank = [](int rank) {
    // Alike, but for one element a rank.
    at::Tensor own = at::arange(15, at::kDouble).view({5, 3});
    own[rank % 5][1] = -3;
    return own;
  };
  const auto pair = [](const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor ab = (a * b).sum();
    return (1 - ab / (2 * a.square().sum())) * a + (1 - ab / (2 * b.square().sum())) * b;
  };
  std::vector<at::Tensor> level;
  for (int rank = 0; rank < ronde::size(); ++rank) level.push_back(of_rank(rank));
  while (level.size() > 1) {
    std::vector<at::Tensor> next;
    for (std::size_t i = 0; i + 1 < level.size(); i += 2) {
      next.push_back(pair(level[i], level[i + 1]));
    }
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = next;
  }
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor own = of_rank(ronde::rank()).to(dtype).t().contiguous().t();
    const at::Tensor result = ronde::allreduce(own, {.name = "adasum", .op = ReduceOp::Adasum});
    const double tolerance = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 0.05;
    CHECK(result.scalar_type() == dtype);
    CHECK(at::allclose(result.to(at::kDouble), level[0], tolerance, tolerance));
  }
  CHECK_THROWS_AS(ronde::allreduce(at::ones({3}, at::kLong), {.op = ReduceOp::Adasum}),
                  ronde::UsageError);
  ronde::allreduce(at::ones({3}));
}
