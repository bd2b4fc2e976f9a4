// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <ronde/error.h>
#include <catch2/catch.hpp>
#include <map>
#include <set>

namespace resnet {
namespace {

using Catch::Contains;
using Names = std::vector<std::string>;
using Sizes = std::vector<std::int64_t>;

std::int64_t elements(const ResNet& network) {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : network->parameters()) count += parameter.numel();
  return count;
}

/// What a bottleneck computes, written out. In training, batch normalisation uses the batch alone.
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
  const auto parameters = network->named_parameters();
  const Names first = {"conv1.weight",
                       "bn1.weight",
                       "bn1.bias",
                       "layer1.0.conv1.weight",
                       "layer1.0.bn1.weight",
                       "layer1.0.bn1.bias",
                       "layer1.0.conv2.weight",
                       "layer1.0.bn2.weight",
                       "layer1.0.bn2.bias",
                       "layer1.0.conv3.weight",
                       "layer1.0.bn3.weight",
                       "layer1.0.bn3.bias",
                       "layer1.0.downsample.0.weight",
                       "layer1.0.downsample.1.weight",
                       "layer1.0.downsample.1.bias",
                       "layer1.1.conv1.weight"};
  const Names names = parameters.keys();
  CHECK(Names(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(first.size())) == first);
  CHECK(Names(names.end() - 3, names.end()) == Names{"layer4.2.bn3.bias", "fc.weight", "fc.bias"});
  for (const auto& [name, sizes] :
       std::map<std::string, Sizes>{{"conv1.weight", {64, 3, 7, 7}},
                                    {"layer1.0.conv1.weight", {64, 64, 1, 1}},
                                    {"layer1.0.downsample.0.weight", {256, 64, 1, 1}},
                                    {"layer2.0.conv1.weight", {128, 256, 1, 1}},
                                    {"layer2.0.conv2.weight", {128, 128, 3, 3}},
                                    {"layer3.5.bn3.weight", {1024}},
                                    {"layer4.0.downsample.0.weight", {2048, 1024, 1, 1}},
                                    {"layer4.2.conv3.weight", {2048, 512, 1, 1}},
                                    {"fc.weight", {1000, 2048}},
                                    {"fc.bias", {1000}}}) {
    INFO(name);
    CHECK(parameters[name].sizes() == torch::IntArrayRef(sizes));
  }
  const Names buffers = network->named_buffers().keys();
  CHECK(buffers.size() == 3 * 53);
  CHECK(Names(buffers.begin(), buffers.begin() + 3) ==
        Names{"bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked"});

  const Names basic = ResNet("resnet18")->named_parameters().keys();
  const std::set<std::string> known(basic.begin(), basic.end());
  CHECK(known.count("layer1.0.bn2.bias") == 1);
  CHECK(known.count("layer1.0.downsample.0.weight") == 0);
  CHECK(known.count("layer2.0.downsample.0.weight") == 1);
}

TEST_CASE("a bottleneck adds its branch to its shortcut") {
  torch::manual_seed(5);
  ResidualBlock block(/*bottleneck=*/true, /*in_channels=*/6, /*width=*/4, /*stride=*/2);
  const torch::Tensor input = torch::randn({3, 6, 8, 10});
  const torch::Tensor output = block->forward(input);
  CHECK(output.sizes() == torch::IntArrayRef({3, 16, 4, 5}));
  CHECK(torch::allclose(output, bottleneck(input, block, 2), 1e-4, 1e-5));
}

TEST_CASE("the network shrinks images by 32, and every parameter gets a gradient") {
  torch::manual_seed(6);
  ResNet network("resnet18");
  const torch::Tensor output = network->forward(torch::randn({2, 3, 64, 96}));
  REQUIRE(output.sizes() == torch::IntArrayRef({2, kClasses}));
  torch::cross_entropy_loss(output, torch::tensor({1, 2}, torch::kInt64)).backward();
  for (const auto& item : network->named_parameters()) {
    INFO(item.key());
    REQUIRE(item.value().grad().defined());
    CHECK(item.value().grad().abs().sum().item<float>() > 0);
  }
  CHECK(output.isfinite().all().item<bool>());
}

TEST_CASE("an unknown model is refused with the names there are") {
  CHECK_THROWS_AS(ResNet("resnet51"), ronde::UsageError);
  CHECK_THROWS_WITH(ResNet("resnet51"),
                    Contains("resnet51") && Contains("resnet18, resnet50, resnet101"));
}

}  // namespace resnet
