// SPDX-License-Identifier: Apache-2.0
#include <ronde/coroutine.h>

#include "tests/torch/support.h"

namespace ronde_test::coroutine_test {
namespace {

ronde::Task<at::Tensor> sum_of(at::Tensor tensor, std::string name) {
  const TensorWork work = ronde::allreduce_async(tensor, {.name = name, .op = ReduceOp::Sum});
  co_return co_await work;
}

ronde::Task<double> sum_of_sums(at::Tensor first, at::Tensor second) {
  ronde::Task<at::Tensor> one = sum_of(first, "first"), two = sum_of(second, "second");
  const at::Tensor sum = co_await two;
  co_return (sum + co_await one).sum().item<double>();
}

TEST_CASE("co_await of a TensorWork returns its tensor, or throws its error") {
  CHECK(torch::equal(sum_of(full({3}, ronde::rank() + 1.0), "x").get(), full({3}, sum_to_size())));
  CHECK(sum_of_sums(full({2}, 1.0), full({2}, 10.0)).get() == 22 * ronde::size());
  if (ronde::size() == 1) return;
  ronde::Task<at::Tensor> refused = sum_of(full({ronde::rank() + 1}, 1.0), "y");
  check_refused([&] { refused.get(); }, {"'y'", "rank 1"});
}

}  // namespace
}  // namespace ronde_test::coroutine_test
