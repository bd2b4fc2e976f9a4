// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

namespace edsr {

/// Bicubic resampling (Keys' kernel with a = -0.5, widened when shrinking so that it does not
/// alias): what MATLAB's imresize does, with which DIV2K's low-resolution images and the bicubic
/// figures of the literature were made. uint8 [3, H, W] -> uint8 [3, height, width], rounded.
torch::Tensor bicubic_resize(const torch::Tensor& image, std::int64_t height, std::int64_t width);

/// Shrinks so that the longer side is at most `max_side` pixels; 0 leaves every size as it is.
torch::Tensor limit_side(const torch::Tensor& image, std::int64_t max_side);

/// Cuts the right and lower edge so that both sides are multiples of `scale`.
torch::Tensor crop_to_multiple(const torch::Tensor& image, std::int64_t scale);

/// [..., H, W] in [0, 1] -> uint8, rounded and clamped; and the way back.
torch::Tensor to_bytes(const torch::Tensor& image);
torch::Tensor to_unit(const torch::Tensor& image);

}  // namespace edsr
