// SPDX-License-Identifier: Apache-2.0
// Complex numbers, dtypes that Ronde moves as bytes, and tensors that are sent as f16 and bf16.
#include "tests/torch/layouts.h"

namespace ronde_test::dtypes_test {
namespace {

using ronde::DataType;

/// Conjugated lazily, or column-major.
at::Tensor numbers_of(int rank, at::ScalarType dtype) {
  const at::Tensor numbers = whole_numbers({4, 3}, rank, 50, dtype);
  return rank % 2 == 0 ? at::conj_physical(numbers).conj() : column_major(numbers);
}

TEST_CASE("sums and averages of complex numbers are those of their parts") {
  for (const at::ScalarType dtype : {at::kComplexHalf, at::kComplexFloat, at::kComplexDouble}) {
    CAPTURE(at::toString(dtype));
    const at::Tensor all = at::stack(
        by_rank([&](int rank) { return numbers_of(rank, dtype).to(at::kComplexDouble); }));
    const at::Tensor sum = all.sum(0), mean = all.mean(0);
    const auto make = [&] { return numbers_of(ronde::rank(), dtype); };
    const at::Tensor written = make();
    ronde::allreduce_(written, {.op = ReduceOp::Sum});
    CHECK(near(flatten({written}), flatten({sum}), 0));
    const at::Tensor average = ronde::allreduce(make(), {.prescale = 2, .postscale = 4});
    CHECK(near(flatten({average}), 8 * flatten({mean}), 1e-2));
    const at::Tensor rows = ronde::reducescatter(make(), {.op = ReduceOp::Sum});
    CHECK(near(flatten({rows}), flatten({sum.tensor_split(ronde::size())[ronde::rank()]}), 0));
    if (dtype == at::kComplexHalf) continue;  // LibTorch compares none
    check_allreduce(make, sum.to(dtype), {.op = ReduceOp::Sum});
    const at::Tensor halves = ronde::allreduce(make(), {.wire_dtype = ronde::DataType::F16});
    CHECK(near(flatten({halves}), flatten({mean}), 1e-3));
  }
}

TEST_CASE("gradients of collectives on complex numbers are those on their parts") {
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> runs = {
      [](const at::Tensor& t) { return ronde::allreduce(t); },
      [](const at::Tensor& t) { return ronde::allreduce_(t * 2); },
      [](const at::Tensor& t) {
        return ronde::grouped_allreduce({t * 3, t}).front();
      },
      [](const at::Tensor& t) { return ronde::broadcast(t); },
      [](const at::Tensor& t) { return ronde::allgather(t); },
      [](const at::Tensor& t) { return ronde::reducescatter(t); },
      [](const at::Tensor& t) { return ronde::alltoall(t); }};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    CAPTURE(i);
    const auto gradient_of = [&](bool is_complex) {
      const at::Tensor x = normal({4 * ronde::size(), 3, 2}, 90 + ronde::rank()).requires_grad_();
      const at::Tensor result =
          is_complex ? at::view_as_real(runs[i](at::view_as_complex(x).conj()).resolve_conj())
                     : runs[i](x * at::tensor({1.0, -1.0}, at::kDouble));
      (result * normal(result.sizes(), 7 + ronde::rank())).sum().backward();
      return x.grad();
    };
    CHECK(near(gradient_of(true), gradient_of(false), 1e-12));
  }
}

TEST_CASE("what has no sum, no order or no rows is refused by name", "[n1][n2]") {
  const at::Tensor complex = at::ones({2}, at::kComplexFloat);
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
    const std::string text = "there is no " + std::string(ronde::to_string(op));
    check_refused([&] { ronde::allreduce(complex, {.name = "x", .op = op}); },
                  {"(\"x\") (c64 [2] on cpu)", text, "view_as_real"});
    check_refused([&] { ronde::reducescatter(complex, {.op = op}); }, {text});
  }
  for (const at::ScalarType dtype : kOtherDtypes) {
    if (at::isComplexType(dtype)) continue;
    const at::Tensor tensor = at::ones({2}, at::kByte).to(dtype);
    if (at::isIntegralType(dtype, false)) {
      CHECK(same_bits(ronde::allreduce(tensor), tensor));
      continue;
    }
    const std::string text = std::string(at::toString(dtype)) + " [2] on cpu): elements of this";
    check_refused([&] { ronde::allreduce(tensor); }, {text, "Convert the tensor"});
    check_refused([&] { ronde::allreduce_(tensor, {.op = ReduceOp::Max}); }, {text});
    check_refused([&] { ronde::reducescatter(tensor); }, {text});
    check_refused([&] { ronde::grouped_allreduce({complex, tensor}); }, {text, "tensor 1"});
  }
  const at::Tensor byte = at::zeros({1}, at::ScalarType::Bits8);
  check_refused([&] { ronde::allreduce(byte); }, {"Bits8 [1] on cpu): elements of this"});
  CHECK(same_bits(ronde::broadcast(byte), byte));
  const std::string advice = "a scalar has no first dimension to split along";
  check_refused([] { ronde::alltoall(at::empty({}, at::kUInt16)); }, {advice});
  check_refused([] { ronde::alltoall(at::ones({}, at::kComplexFloat)); }, {advice});
  check_refused([] { ronde::reducescatter(at::ones({}, at::kComplexFloat)); }, {advice});
  CHECK(torch::equal(ronde::allreduce(complex), complex));
  if (ronde::size() == 1) return;
  // Complex numbers are not taken for bytes of another rank.
  const at::Tensor mine = ronde::rank() == 0 ? complex : at::empty({2}, at::kUInt64);
  check_refused([&] { ronde::broadcast(mine, {.name = "mixed"}); }, {"mixed", "c64", "u64"});
}

TEST_CASE("broadcast_parameters takes complex, float8, unsigned and expanded tensors") {
  for (int root = 0; root < ronde::size(); ++root) {
    const auto net = heads_of(ronde::rank());
    ronde::broadcast_parameters(*net, root);
    CHECK(bytes_of(*net) == bytes_of(*heads_of(root)));
    CHECK(net->named_buffers()["mask"].stride(0) == 0);
  }
}

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

TEST_CASE("all forms of allreduce and their gradients are sent as halves, as LibTorch rounds") {
  const std::vector<std::int64_t> sizes = {37, 5};
  for (const Types& types : kTypes) {
    CAPTURE(to_string(types.wire), at::toString(types.dtype));
    const at::Tensor expected = averaged(types, sizes);
    const AllreduceOptions options = {.name = "x", .wire_dtype = types.wire};
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
    const AllreduceOptions options = {.op = op, .wire_dtype = DataType::BF16};
    const std::string expected =
        "a " + std::string(to_string(op)) + " with a wire_dtype has no gradient";
    check_refused([&] { ronde::allreduce(tensor, options); }, {expected});
    check_refused([&] { ronde::grouped_allreduce({tensor}, options); }, {expected});
    CHECK(at::equal(ronde::allreduce(tensor.detach(), options), at::ones({3})));
  }
}

}  // namespace
}  // namespace ronde_test::dtypes_test
