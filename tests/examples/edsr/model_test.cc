// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <catch2/catch.hpp>

#include "tests/examples/edsr/support.h"

namespace edsr {
namespace {

EdsrOptions shape(std::int64_t blocks, std::int64_t features, std::int64_t scale) {
  return {.blocks = blocks, .features = features, .scale = scale};
}

/// One of the convolutions with 3 x 3 weights.
template <typename Parameters>
torch::Tensor convolve(const torch::Tensor& image, const Parameters& parameters,
                       const std::string& name) {
  return at::conv2d(image, parameters[name + ".weight"], parameters[name + ".bias"], 1, 1);
}

}  // namespace

TEST_CASE("the network enlarges by its scale, and every parameter gets a gradient") {
  const auto scale = GENERATE(as<std::int64_t>{}, 2, 3, 4);
  Edsr network(shape(2, 8, scale));
  const torch::Tensor output = network->forward(torch::rand({2, 3, 7, 11}));
  CHECK(output.sizes() == torch::IntArrayRef({2, 3, 7 * scale, 11 * scale}));
  output.square().sum().backward();
  for (const auto& item : network->named_parameters()) {
    INFO(item.key());
    REQUIRE(item.value().grad().defined());
    CHECK(item.value().grad().abs().sum().item<float>() > 0);
  }
}

TEST_CASE("the published sizes have the published numbers of parameters") {
  CHECK(Edsr(shape(16, 64, 2))->parameter_count() == 1'369'859);
  CHECK(Edsr(shape(16, 64, 3))->parameter_count() == 1'554'499);
  CHECK(Edsr(shape(16, 64, 4))->parameter_count() == 1'517'571);
  CHECK(Edsr(shape(32, 256, 2))->parameter_count() == 40'729'603);
}

TEST_CASE("a residual block adds its scaled branch to the input") {
  torch::manual_seed(3);
  ResidualBlock block(4, 0.1);
  const torch::Tensor input = torch::randn({1, 4, 6, 6});
  const auto parameters = block->named_parameters();
  const torch::Tensor middle = torch::relu(convolve(input, parameters, "first"));
  const torch::Tensor branch = convolve(middle, parameters, "second");
  CHECK(torch::allclose(block->forward(input), input + 0.1 * branch, 1e-5, 1e-6));
}

TEST_CASE("the head's features skip the whole body") {
  torch::manual_seed(4);
  Edsr network(shape(3, 8, 2));
  const torch::NoGradGuard no_grad;
  auto parameters = network->named_parameters();
  // With a body that puts out zero, all that reaches the upsampler is the skip.
  parameters["body_end.weight"].zero_();
  parameters["body_end.bias"].zero_();
  const torch::Tensor input = torch::rand({1, 3, 9, 9});
  const torch::Tensor mean =  // of DIV2K
      torch::tensor({0.4488, 0.4371, 0.4040}, torch::kFloat32).view({1, 3, 1, 1});
  const torch::Tensor head = convolve(input - mean, parameters, "head");
  const torch::Tensor enlarged = torch::pixel_shuffle(convolve(head, parameters, "upsampler.0"), 2);
  const torch::Tensor expected = convolve(enlarged, parameters, "tail") + mean;
  CHECK(torch::allclose(network->forward(input), expected, 1e-4, 1e-5));
}

}  // namespace edsr
