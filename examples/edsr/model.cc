// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <sstream>

#include "common/program.h"

namespace edsr {
namespace {

constexpr std::int64_t kColors = 3;

torch::nn::Conv2d conv3x3(std::int64_t in_channels, std::int64_t out_channels) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, out_channels, 3).padding(1));
}

void check(const EdsrOptions& options) {
  if (options.scale < 2 || options.scale > 4) {
    throw example::InputError("scale " + std::to_string(options.scale) + " is not 2, 3 or 4");
  }
  if (options.blocks < 1 || options.features < 1) {
    throw example::InputError("blocks and features must be at least 1, not " +
                              std::to_string(options.blocks) + " and " +
                              std::to_string(options.features));
  }
}

}  // namespace

std::string describe(const EdsrOptions& options) {
  std::ostringstream text;
  text << options.blocks << " blocks x " << options.features << " features, x" << options.scale
       << ", residual scaling " << options.residual_scale;
  return text.str();
}

ResidualBlockImpl::ResidualBlockImpl(std::int64_t features, double residual_scale)
    : residual_scale_(residual_scale) {
  first_ = register_module("first", conv3x3(features, features));
  second_ = register_module("second", conv3x3(features, features));
}

torch::Tensor ResidualBlockImpl::forward(const torch::Tensor& input) {
  const torch::Tensor branch = second_->forward(torch::relu(first_->forward(input)));
  return torch::add(input, branch, residual_scale_);
}

EdsrImpl::EdsrImpl(const EdsrOptions& options) : options_(options) {
  check(options);
  head_ = register_module("head", conv3x3(kColors, options.features));
  body_ = register_module("body", torch::nn::ModuleList());
  for (std::int64_t block = 0; block < options.blocks; ++block) {
    body_->push_back(ResidualBlock(options.features, options.residual_scale));
  }
  body_end_ = register_module("body_end", conv3x3(options.features, options.features));
  upsampler_ = register_module("upsampler", torch::nn::ModuleList());
  // x4 is two shuffles of x2; x2 and x3 are one each.
  const std::int64_t stages = options.scale == 4 ? 2 : 1;
  const std::int64_t factor = options.scale == 3 ? 3 : 2;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    upsampler_->push_back(conv3x3(options.features, options.features * factor * factor));
  }
  tail_ = register_module("tail", conv3x3(options.features, kColors));
}

torch::Tensor EdsrImpl::div2k_mean_like(const torch::Tensor& image) {
  // Kept, as the copy to a GPU would wait for it.
  if (!mean_.defined() || mean_.device() != image.device() || mean_.dtype() != image.dtype()) {
    mean_ = torch::tensor({0.4488, 0.4371, 0.4040}, image.options()).view({1, kColors, 1, 1});
  }
  return mean_;
}

torch::Tensor EdsrImpl::forward(const torch::Tensor& low_resolution) {
  const torch::Tensor mean = div2k_mean_like(low_resolution);
  const torch::Tensor head = head_->forward(low_resolution - mean);
  torch::Tensor features = head;
  for (const auto& block : *body_) {
    features = block->as<ResidualBlockImpl>()->forward(features);
  }
  features = body_end_->forward(features) + head;
  const std::int64_t factor = options_.scale == 3 ? 3 : 2;
  for (const auto& stage : *upsampler_) {
    features = torch::pixel_shuffle(stage->as<torch::nn::Conv2dImpl>()->forward(features), factor);
  }
  return tail_->forward(features) + mean;
}

std::int64_t EdsrImpl::parameter_count() const {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

}  // namespace edsr
