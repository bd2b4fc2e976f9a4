// SPDX-License-Identifier: Apache-2.0
// Tensors that are sent as f16 and bf16, against LibTorch's own conversions.
#include "tests/torch/layouts.h"

namespace ronde_test::wire_dtype_test {

using ronde::DataType;
using ronde::ReduceOp;

namespace {

struct Types {
  at::ScalarType dtype;
  at::ScalarType half;
  DataType wire;
};

const std::vector<Types> kTypes = {{at::kFloat, at::kHalf, DataType::F16},
                                   {at::kFloat, at::kBFloat16, DataType::BF16},
                                   {at::kDouble, at::kHalf, DataType::F16},
                                   {at::kDouble, at::kBFloat16, DataType::BF16}};

/// Numbers of f32, as LibTorch rounds f64 to a half type by way of that.
at::Tensor values(const Types& types, at::IntArrayRef sizes, int rank) {
  const int seed = 300 + rank;
  return normal(sizes, seed).to(at::kFloat).to(types.dtype);
}

/// The average of what all ranks bring: rounded, added up in f32 in the order of ranks, rounded.
at::Tensor averaged(const Types& types, at::IntArrayRef sizes) {
  const auto sent = [&](int rank) {
    return values(types, sizes, rank).to(types.half).to(at::kFloat);
  };
  at::Tensor sum = sent(0);
  for (int rank = 1; rank < ronde::size(); ++rank) sum = sum + sent(rank);
  return (sum / static_cast<float>(ronde::size())).to(types.half).to(types.dtype);
}

}  // namespace

TEST_CASE("all forms of allreduce and their gradients are sent as halves, as LibTorch rounds") {
  const std::vector<std::int64_t> sizes = {37, 5};
  for (const Types& types : kTypes) {
    CAPTURE(to_string(types.wire), at::toString(types.dtype));
    const at::Tensor expected = averaged(types, sizes);
    const ronde::AllreduceOptions options = {.name = "x", .wire_dtype = types.wire};
    const auto make = [&] { return column_major(values(types, sizes, ronde::rank())); };
    check_allreduce(make, expected, options);
    const std::vector<std::function<at::Tensor(const at::Tensor&)>> recorded = {
        [&](const at::Tensor& t) { return ronde::allreduce(t, options); },
        [&](const at::Tensor& t) { return ronde::allreduce_(t * 1, options); },
        [&](const at::Tensor& t) { return ronde::grouped_allreduce({t}, options).at(0); }};
    for (const auto& reduce : recorded) {
      const at::Tensor tensor = at::ones(sizes, types.dtype).requires_grad_();
      (reduce(tensor) * make()).sum().backward();
      CHECK(at::equal(tensor.grad(), expected));
    }
  }
}

TEST_CASE("a wire_dtype that is impossible, or has no gradient, is refused", "[n2]") {
  const at::Tensor counts = at::ones({3}, at::kLong);
  check_refused([&] { ronde::allreduce(counts, {.wire_dtype = DataType::F16}); },
                {"i64 cannot be sent as f16"});
  const at::Tensor tensor = at::ones({3}).requires_grad_();
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
    const ronde::AllreduceOptions options = {.op = op, .wire_dtype = DataType::BF16};
    const std::string expected =
        "a " + std::string(to_string(op)) + " with a wire_dtype has no gradient";
    check_refused([&] { ronde::allreduce(tensor, options); }, {expected});
    check_refused([&] { ronde::grouped_allreduce({tensor}, options); }, {expected});
    CHECK(at::equal(ronde::allreduce(tensor.detach(), options), at::ones({3})));
  }
}

}  // namespace ronde_test::wire_dtype_test
