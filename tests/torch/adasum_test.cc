// SPDX-License-Identifier: Apache-2.0
// ReduceOp::Adasum on tensors.
#include <vector>

#include "adasum.h"

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
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ronde::size(); ++rank) all.push_back(of_rank(rank));
  const at::Tensor expected = adasum(all);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor own = of_rank(ronde::rank()).to(dtype).t().contiguous().t();
    const at::Tensor result = ronde::allreduce(own, {.name = "adasum", .op = ReduceOp::Adasum});
    const double tolerance = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 0.05;
    CHECK(result.scalar_type() == dtype);
    CHECK(at::allclose(result.to(at::kDouble), expected, tolerance, tolerance));
  }
  CHECK_THROWS_AS(ronde::allreduce(at::ones({3}, at::kLong), {.op = ReduceOp::Adasum}),
                  ronde::UsageError);
  ronde::allreduce(at::ones({3}));
}
