// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/_neg_view.h>

#include "tests/support/oracle/adasum_oracle.h"
#include "tests/torch/support.h"

namespace ronde_test {

/// All that Ronde computes with, but complex ones.
inline const std::vector<at::ScalarType> kDtypes = {
    at::kByte, at::kChar,  at::kShort,  at::kInt,  at::kLong,
    at::kHalf, at::kFloat, at::kDouble, at::kBool, at::kBFloat16};

/// Complex numbers, which Ronde adds up as two real ones, unsigned integers that LibTorch computes
/// little with, and those that Ronde moves as bytes.
inline const std::vector<at::ScalarType> kOtherDtypes = {
    at::kComplexHalf,   at::kComplexFloat,    at::kComplexDouble,   at::kFloat8_e5m2,
    at::kFloat8_e4m3fn, at::kFloat8_e5m2fnuz, at::kFloat8_e4m3fnuz, at::kFloat8_e8m0fnu,
    at::kUInt16,        at::kUInt32,          at::kUInt64};

/// Any bits of a `seed`.
inline at::Tensor bits(at::IntArrayRef sizes, at::ScalarType dtype, int seed) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  const std::int64_t bytes =
      c10::multiply_integers(sizes) * static_cast<std::int64_t>(c10::elementSize(dtype));
  return at::randint(0, 256, {bytes}, generator, at::kByte).view(dtype).view(sizes);
}

/// Returns tensors as in a transformer: rotary angles, one mask for all heads, a window with
/// overlapping rows, small types. `shares`: elements of mask and window share memory.
inline std::shared_ptr<torch::nn::Module> heads_of(int seed, bool shares = true) {
  auto net = std::make_shared<torch::nn::Module>();
  net->register_parameter("spectrum", bits({2, 3}, at::kComplexFloat, seed));
  net->register_buffer("lazy", bits({4}, at::kComplexDouble, seed).conj());
  const at::Tensor mask = at::full({6, 6}, seed + 1.0).tril().expand({4, 6, 6});
  const at::Tensor window = (at::arange(6, at::kFloat) + seed).unfold(0, 3, 1);
  net->register_buffer("mask", shares ? mask : mask.contiguous());
  net->register_buffer("window", shares ? window : window.contiguous());
  for (const at::ScalarType dtype : kOtherDtypes) {
    net->register_buffer(at::toString(dtype), bits({3, 2}, dtype, seed));
  }
  return net;
}

/// The bytes of all parameters and buffers.
inline std::string bytes_of(const torch::nn::Module& net) {
  std::string text;
  for (const at::Tensor& parameter : net.parameters()) text += bytes_of(parameter);
  for (const at::Tensor& buffer : net.buffers()) text += bytes_of(buffer);
  return text;
}

/// All that Ronde moves.
inline const std::vector<at::ScalarType> kMovedDtypes = [] {
  std::vector<at::ScalarType> all = kDtypes;
  all.insert(all.end(), kOtherDtypes.begin(), kOtherDtypes.end());
  return all;
}();

/// Small whole numbers of a rank, other ones for each `seed`: exact in every dtype, also summed or
/// multiplied over the ranks, and some of them negative where the dtype has such.
inline at::Tensor whole_numbers(at::IntArrayRef sizes, int rank, std::int64_t seed,
                                at::ScalarType dtype = at::kFloat) {
  at::Generator generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * seed + rank));
  const at::Tensor drawn = at::randint(0, 5, sizes, generator, at::kDouble);
  if (at::isComplexType(dtype)) return ((drawn - 2) * c10::complex<double>(1, 2)).to(dtype);
  const bool is_unsigned = dtype == at::kBool || !at::isSignedType(dtype);
  return (is_unsigned ? drawn.remainder(3) : drawn - 2).to(dtype);
}

inline Tensors numbers_of_all(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return by_rank([&](int rank) { return whole_numbers(sizes, rank, 0, dtype); });
}

/// The sum of whole numbers, which is exact in their dtype.
inline at::Tensor sum_of(const Tensors& all) {
  return at::stack(all).sum(0).to(all.front().scalar_type());
}

/// Computes Adasum of the vectors of all ranks, in f64.
inline at::Tensor adasum(const Tensors& of_ranks) {
  std::vector<std::vector<double>> vectors;
  for (const at::Tensor& tensor : of_ranks) {
    const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous();
    const auto* const begin = flat.const_data_ptr<double>();
    vectors.emplace_back(begin, begin + flat.numel());
  }
  std::vector<double> values = ronde::test::adasum_of(vectors).values;
  return at::tensor(values, at::kDouble).view(of_ranks.front().sizes());
}

/// A tensor of the values of a row-major one, laid out otherwise.
struct Layout {
  std::string name;
  std::function<at::Tensor(const at::Tensor&)> make;
};

/// Layouts of four dimensions that may be written in place.
inline const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"row-major", [](const at::Tensor& t) { return t.clone(); }},
      {"channels-last",
       [](const at::Tensor& t) { return t.contiguous(at::MemoryFormat::ChannelsLast); }},
      {"transposed",
       [](const at::Tensor& t) { return t.transpose(1, 3).contiguous().transpose(1, 3); }},
      {"every second element",
       [](const at::Tensor& t) {
         at::Tensor wide = at::zeros({t.size(0), t.size(1), t.size(2), 2 * t.size(3)}, t.options());
         return wide.slice(3, 0, 2 * t.size(3), 2).copy_(t);
       }},
      {"conjugated or negated view",
       [](const at::Tensor& t) {
         if (t.is_complex()) return at::conj_physical(t).conj();
         const bool has_minus = t.is_floating_point() && t.element_size() > 1;
         return has_minus ? at::_neg_view(-t) : t.clone();
       }},
  };
  return all;
}

/// A layout for each rank and number, other ones on neighbouring ranks.
inline at::Tensor laid_out(const at::Tensor& tensor, int rank, std::int64_t number) {
  return layouts()[static_cast<std::size_t>(rank + number) % layouts().size()].make(tensor);
}

/// A matrix whose columns are contiguous.
inline at::Tensor column_major(const at::Tensor& matrix) {
  return matrix.t().contiguous().t();
}

/// Checks that all forms of allreduce give `expected`: those that write in place keep the strides
/// of the tensors that `make` makes, which the others leave alone.
inline void check_allreduce(const std::function<at::Tensor()>& make, const at::Tensor& expected,
                            const AllreduceOptions& options) {
  const at::Tensor tensor = make();
  for (const at::Tensor& result :
       {ronde::allreduce(tensor, options), ronde::allreduce_async(tensor, options).wait(),
        ronde::grouped_allreduce({tensor, make()}, options)[1],
        ronde::grouped_allreduce_async({tensor}, options).wait()[0]}) {
    CHECK(result.is_contiguous());
    CHECK(equal({result}, {expected}));
  }
  CHECK(torch::equal(tensor, make()));
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> in_place = {
      [&](const at::Tensor& t) { return ronde::allreduce_(t, options); },
      [&](const at::Tensor& t) { return ronde::allreduce_async_(t, options).wait(); },
      [&](const at::Tensor& t) {
        return ronde::grouped_allreduce_({make(), t}, options)[1];
      },
      [&](const at::Tensor& t) {
        return ronde::grouped_allreduce_async_({t, make()}, options).wait()[0];
      }};
  for (const auto& reduce : in_place) {
    const at::Tensor written = make();
    CHECK(reduce(written).is_same(written));
    CHECK(equal({written}, {expected}));
    CHECK(written.strides() == tensor.strides());
  }
}

}  // namespace ronde_test
