// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include <torch/types.h>

namespace edsr {

/// Decodes a JPEG or PNG file, recognized by its content, to a uint8 tensor [3, H, W] in RGB; grey
/// images are widened to three channels and transparent ones laid over black. Throws InputError
/// naming the file and the reason when it is missing, of another format, truncated or corrupt: a
/// JPEG that its decoder could only finish with a warning ("premature end") counts as corrupt.
torch::Tensor read_image(const std::filesystem::path& path);

/// Writes a uint8 tensor [3, H, W] as PNG. Throws InputError when it cannot be written.
void write_png(const std::filesystem::path& path, const torch::Tensor& image);

/// Bicubic resampling (Keys' kernel with a = -0.5, widened when shrinking so that it does not
/// alias): what MATLAB's imresize does, with which DIV2K's low-resolution images and the bicubic
/// figures of the literature were made. uint8 [3, H, W] -> uint8 [3, height, width], rounded.
torch::Tensor bicubic_resize(const torch::Tensor& image, std::int64_t height, std::int64_t width);

/// Shrinks so that the longer side is at most `max_side` pixels; 0 leaves every size as it is.
torch::Tensor limit_side(const torch::Tensor& image, std::int64_t max_side);

/// Cuts the right and lower edge so that both sides are multiples of `scale`.
torch::Tensor crop_to_multiple(const torch::Tensor& image, std::int64_t scale);

/// Converts [..., H, W] in [0, 1] to uint8, rounded and clamped.
torch::Tensor to_bytes(const torch::Tensor& image);
/// Converts uint8 to f32 in [0, 1].
torch::Tensor to_unit(const torch::Tensor& image);

}  // namespace edsr
