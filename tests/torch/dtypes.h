// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/torch/support.h"

namespace ronde_test {

/// Complex numbers, which Ronde adds up as two real ones, and those that it moves as bytes.
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

/// As a transformer's: rotary angles, one mask for all heads, a window whose rows overlap,
/// quantities of small types. `shares`: of mask and window, elements share memory.
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

}  // namespace ronde_test
