// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace edsr {

/// Shape of the network. The published sizes are 16 x 64 with scaling 1 (baseline) and 32 x 256
/// with scaling 0.1 (full).
struct EdsrOptions {
  std::int64_t blocks = 16;
  std::int64_t features = 64;
  std::int64_t scale = 2;       ///< 2, 3 or 4
  double residual_scale = 1.0;  ///< factor on each residual branch; 0.1 keeps wide networks stable

  bool operator==(const EdsrOptions&) const = default;
};

/// "4 blocks x 32 features, x2, residual scaling 1".
std::string describe(const EdsrOptions& options);

/// conv - ReLU - conv, scaled and added to its input; no batch normalisation.
class ResidualBlockImpl : public torch::nn::Module {
 public:
  ResidualBlockImpl(std::int64_t features, double residual_scale);
  torch::Tensor forward(const torch::Tensor& input);

 private:
  torch::nn::Conv2d first_{nullptr};
  torch::nn::Conv2d second_{nullptr};
  double residual_scale_;
};
TORCH_MODULE(ResidualBlock);

/// EDSR (Lim et al., "Enhanced Deep Residual Networks for Single Image Super-Resolution", CVPRW
/// 2017): head convolution, residual blocks, global skip, pixel shuffle, last convolution. The mean
/// colour of DIV2K is subtracted from the input and added to the output, as in the authors' code.
class EdsrImpl : public torch::nn::Module {
 public:
  /// Throws InputError for a scale other than 2, 3 or 4, or a size below 1.
  explicit EdsrImpl(const EdsrOptions& options);

  /// [N, 3, H, W] in [0, 1] -> [N, 3, H * scale, W * scale], not clamped.
  torch::Tensor forward(const torch::Tensor& low_resolution);

  const EdsrOptions& options() const { return options_; }
  std::int64_t parameter_count() const;

 private:
  torch::Tensor div2k_mean_like(const torch::Tensor& image);

  EdsrOptions options_;
  torch::Tensor mean_;  // of the last image's device and dtype; not saved
  torch::nn::Conv2d head_{nullptr};
  torch::nn::ModuleList body_{nullptr};
  torch::nn::Conv2d body_end_{nullptr};
  torch::nn::ModuleList upsampler_{nullptr};
  torch::nn::Conv2d tail_{nullptr};
};
TORCH_MODULE(Edsr);

}  // namespace edsr
