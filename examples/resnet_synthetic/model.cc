// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <ronde/error.h>
#include <torch/nn/init.h>

#include <array>
#include <string_view>

namespace resnet {
namespace {

constexpr std::int64_t kColors = 3;
constexpr std::int64_t kFirstWidth = 64;
constexpr std::int64_t kBottleneckExpansion = 4;

struct Shape {
  std::string_view name;
  bool bottleneck;
  std::array<std::int64_t, 4> blocks;  ///< of each layer
};

constexpr std::array kShapes{
    Shape{"resnet18", false, {2, 2, 2, 2}},
    Shape{"resnet50", true, {3, 4, 6, 3}},
    Shape{"resnet101", true, {3, 4, 23, 3}},
};

const Shape& shape_of(const std::string& name) {
  std::string known;
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + std::string(shape.name);
  }
  throw ronde::UsageError("there is no model " + name + "; use one of: " + known);
}

std::int64_t out_channels(bool bottleneck, std::int64_t width) {
  return bottleneck ? kBottleneckExpansion * width : width;
}

/// Keeps the size at stride 1.
torch::nn::Conv2dOptions convolution(std::int64_t in, std::int64_t out, std::int64_t side,
                                     std::int64_t stride) {
  return torch::nn::Conv2dOptions(in, out, side).stride(stride).padding(side / 2).bias(false);
}

/// Draws weights as in the paper's reference 13, which keeps the variance of gradients through
/// ReLU.
void initialize(torch::nn::Module& module) {
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (auto* conv = child->as<torch::nn::Conv2dImpl>()) {
      torch::nn::init::kaiming_normal_(conv->weight, /*a=*/0, torch::kFanOut, torch::kReLU);
    }
  }
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

ResidualBlockImpl::ResidualBlockImpl(bool bottleneck, std::int64_t in_channels, std::int64_t width,
                                     std::int64_t stride) {
  const std::int64_t out = out_channels(bottleneck, width);
  if (bottleneck) {
    add(convolution(in_channels, width, 1, 1));
    add(convolution(width, width, 3, stride));
    add(convolution(width, out, 1, 1));
  } else {
    add(convolution(in_channels, width, 3, stride));
    add(convolution(width, out, 3, 1));
  }
  if (stride == 1 && in_channels == out) return;
  downsample_ = register_module(
      "downsample",
      torch::nn::Sequential(torch::nn::Conv2d(convolution(in_channels, out, 1, stride)),
                            torch::nn::BatchNorm2d(out)));
}

void ResidualBlockImpl::add(const torch::nn::Conv2dOptions& options) {
  const std::string number = std::to_string(convolutions_.size() + 1);
  convolutions_.push_back(register_module("conv" + number, torch::nn::Conv2d(options)));
  norms_.push_back(register_module("bn" + number, torch::nn::BatchNorm2d(options.out_channels())));
}

torch::Tensor ResidualBlockImpl::forward(const torch::Tensor& input) {
  torch::Tensor branch = input;
  for (std::size_t i = 0; i < convolutions_.size(); ++i) {
    if (i > 0) branch.relu_();
    branch = norms_[i]->forward(convolutions_[i]->forward(branch));
  }
  branch += downsample_.is_empty() ? input : downsample_->forward(input);
  return branch.relu_();
}

ResNetImpl::ResNetImpl(const std::string& name) {
  const Shape& shape = shape_of(name);
  conv1_ = register_module("conv1", torch::nn::Conv2d(convolution(kColors, kFirstWidth, 7, 2)));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(kFirstWidth));
  std::int64_t channels = kFirstWidth;
  for (std::size_t layer = 0; layer < shape.blocks.size(); ++layer) {
    const std::int64_t width = kFirstWidth << layer;
    torch::nn::Sequential blocks;
    for (std::int64_t block = 0; block < shape.blocks[layer]; ++block) {
      const std::int64_t stride = layer > 0 && block == 0 ? 2 : 1;
      blocks->push_back(ResidualBlock(shape.bottleneck, channels, width, stride));
      channels = out_channels(shape.bottleneck, width);
    }
    layers_.push_back(register_module("layer" + std::to_string(layer + 1), blocks));
  }
  fc_ = register_module("fc", torch::nn::Linear(channels, kClasses));
  initialize(*this);
}

torch::Tensor ResNetImpl::forward(const torch::Tensor& images) {
  torch::Tensor features = bn1_->forward(conv1_->forward(images)).relu_();
  features = torch::max_pool2d(features, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  for (torch::nn::Sequential& layer : layers_) features = layer->forward(features);
  return fc_->forward(torch::adaptive_avg_pool2d(features, {1, 1}).flatten(1));
}

}  // namespace resnet
