// SPDX-License-Identifier: Apache-2.0
#include "images/resample.h"

#include <algorithm>
#include <cmath>

#include <ATen/Functions.h>

namespace edsr {

torch::Tensor bicubic_resize(const torch::Tensor& image, std::int64_t height, std::int64_t width) {
  const torch::Tensor resized =
      at::_upsample_bicubic2d_aa(image.unsqueeze(0).to(torch::kFloat32), {height, width},
                                 /*align_corners=*/false);
  return resized.squeeze(0).round().clamp(0, 255).to(torch::kUInt8);
}

torch::Tensor limit_side(const torch::Tensor& image, std::int64_t max_side) {
  const std::int64_t height = image.size(1);
  const std::int64_t width = image.size(2);
  const std::int64_t longer = std::max(height, width);
  if (max_side == 0 || longer <= max_side) return image;
  const auto shrunk = [&](std::int64_t side) {
    const double exact = static_cast<double>(side * max_side) / static_cast<double>(longer);
    return std::max<std::int64_t>(1, std::llround(exact));
  };
  return bicubic_resize(image, shrunk(height), shrunk(width));
}

torch::Tensor crop_to_multiple(const torch::Tensor& image, std::int64_t scale) {
  const std::int64_t height = image.size(1) / scale * scale;
  const std::int64_t width = image.size(2) / scale * scale;
  return image.slice(1, 0, height).slice(2, 0, width).contiguous();
}

torch::Tensor to_bytes(const torch::Tensor& image) {
  return image.mul(255).round().clamp(0, 255).to(torch::kUInt8);
}

torch::Tensor to_unit(const torch::Tensor& image) {
  return image.to(torch::kFloat32).div(255);
}

}  // namespace edsr
