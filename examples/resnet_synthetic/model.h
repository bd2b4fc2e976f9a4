// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace resnet {

inline constexpr std::int64_t kClasses = 1000;

/// The names that ResNet takes: "resnet18", "resnet50", "resnet101".
std::vector<std::string> model_names();

/// Convolutions, each with batch normalisation, added to the input: two of 3x3, or as a bottleneck
/// 1x1, 3x3 (with the stride), 1x1 to four times the width. Where the shape changes the input
/// goes through a 1x1 convolution ("downsample") first.
class ResidualBlockImpl : public torch::nn::Module {
 public:
  ResidualBlockImpl(bool bottleneck, std::int64_t in_channels, std::int64_t width,
                    std::int64_t stride);
  torch::Tensor forward(const torch::Tensor& input);

 private:
  void add(const torch::nn::Conv2dOptions& options);

  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<torch::nn::BatchNorm2d> norms_;
  torch::nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(ResidualBlock);

/// ResNet (He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, table 1)
/// for 1000 classes, with the stride of a bottleneck at its 3x3 convolution. Parameters have the
/// names, shapes and order of torchvision's models.
class ResNetImpl : public torch::nn::Module {
 public:
  /// Throws ronde::UsageError for a name that is not among model_names().
  explicit ResNetImpl(const std::string& name);

  /// [N, 3, H, W] -> [N, kClasses], not normalised.
  torch::Tensor forward(const torch::Tensor& images);

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::vector<torch::nn::Sequential> layers_;
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(ResNet);

}  // namespace resnet
