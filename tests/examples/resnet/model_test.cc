// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <array>
#include <catch2/catch.hpp>
#include <utility>

namespace resnet {
namespace {

using Names = std::vector<std::string>;
using Sizes = std::vector<std::int64_t>;

std::int64_t elements(const ResNet& network) {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : network->parameters()) count += parameter.numel();
  return count;
}

/// Names and sizes of the parameters, in torchvision's order.
std::vector<std::pair<std::string, Sizes>> torchvision_resnet50() {
  std::vector<std::pair<std::string, Sizes>> all;
  const auto add = [&](const std::string& convolution, const std::string& norm, Sizes sizes) {
    all.emplace_back(convolution + ".weight", sizes);
    for (const char* part : {".weight", ".bias"}) all.emplace_back(norm + part, Sizes{sizes[0]});
  };
  add("conv1", "bn1", {64, 3, 7, 7});
  std::int64_t channels = 64;
  for (int layer = 1; layer <= 4; ++layer) {
    const std::int64_t width = 32 << layer;
    for (int block = 0; block < std::array{3, 4, 6, 3}[layer - 1]; ++block) {
      const std::string name = "layer" + std::to_string(layer) + "." + std::to_string(block) + ".";
      add(name + "conv1", name + "bn1", {width, channels, 1, 1});
      add(name + "conv2", name + "bn2", {width, width, 3, 3});
      add(name + "conv3", name + "bn3", {4 * width, width, 1, 1});
      const Sizes shortcut = {4 * width, channels, 1, 1};
      if (block == 0) add(name + "downsample.0", name + "downsample.1", shortcut);
      channels = 4 * width;
    }
  }
  all.emplace_back("fc.weight", Sizes{1000, 2048});
  all.emplace_back("fc.bias", Sizes{1000});
  return all;
}

/// Computes a bottleneck by single operations. In training, batch normalisation uses the batch
/// alone.
torch::Tensor bottleneck(const torch::Tensor& input, const ResidualBlock& block,
                         std::int64_t stride) {
  const auto values = block->named_parameters();
  const auto normalized = [&](const torch::Tensor& image, const std::string& name) {
    return at::batch_norm(image, values[name + ".weight"], values[name + ".bias"], {}, {}, true,
                          0.1, 1e-5, false);
  };
  torch::Tensor branch = at::conv2d(input, values["conv1.weight"]);
  branch = at::relu(normalized(branch, "bn1"));
  branch = at::conv2d(branch, values["conv2.weight"], {}, stride, 1);
  branch = at::relu(normalized(branch, "bn2"));
  branch = normalized(at::conv2d(branch, values["conv3.weight"]), "bn3");
  const torch::Tensor shortcut = at::conv2d(input, values["downsample.0.weight"], {}, stride);
  return at::relu(branch + normalized(shortcut, "downsample.1"));
}

}  // namespace

TEST_CASE("the models have the published numbers of parameters and tensors") {
  struct Row {
    const char* model;
    std::int64_t elements;
    std::size_t tensors;
  };
  for (const Row& row : {Row{"resnet18", 11'689'512, 62}, Row{"resnet50", 25'557'032, 161},
                         Row{"resnet101", 44'549'160, 314}}) {
    INFO(row.model);
    const ResNet network(row.model);
    CHECK(elements(network) == row.elements);
    CHECK(network->parameters().size() == row.tensors);
  }
}

TEST_CASE("names, order and shapes are torchvision's") {
  const ResNet network("resnet50");
  std::vector<std::pair<std::string, Sizes>> named;
  for (const auto& item : network->named_parameters()) {
    named.emplace_back(item.key(), item.value().sizes().vec());
  }
  CHECK(named == torchvision_resnet50());
  const Names buffers = network->named_buffers().keys();
  CHECK(buffers.size() == 3 * 53);
  CHECK(Names(buffers.begin(), buffers.begin() + 3) ==
        Names{"bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked"});
}

TEST_CASE("a bottleneck adds its branch to its shortcut") {
  torch::manual_seed(5);
  ResidualBlock block(/*bottleneck=*/true, /*in_channels=*/6, /*width=*/4, /*stride=*/2);
  const torch::Tensor input = torch::randn({3, 6, 8, 10});
  const torch::Tensor output = block->forward(input);
  CHECK(output.sizes() == torch::IntArrayRef({3, 16, 4, 5}));
  CHECK(torch::allclose(output, bottleneck(input, block, 2), 1e-4, 1e-5));
}

}  // namespace resnet
