// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <torch/types.h>

namespace edsr {

enum class ImageFormat { Jpeg, Png };

struct ImageSize {
  std::int64_t width = 0;
  std::int64_t height = 0;
};

/// What the first bytes of the file say, whatever its name; nothing for anything else. Throws
/// InputError when the file cannot be read.
std::optional<ImageFormat> image_format(const std::filesystem::path& path);

/// Width and height from the header. Throws InputError like read_image.
ImageSize image_size(const std::filesystem::path& path);

/// Decodes a JPEG or PNG file to a uint8 tensor [3, H, W] in RGB; grey images are widened to three
/// channels and transparent ones laid over black. Throws InputError naming the file and the reason
/// when it is missing, of another format, truncated or corrupt: a JPEG that its decoder could only
/// finish with a warning ("premature end") counts as corrupt.
torch::Tensor read_image(const std::filesystem::path& path);

/// Writes a uint8 tensor [3, H, W] as PNG. Throws InputError when it cannot be written.
void write_png(const std::filesystem::path& path, const torch::Tensor& image);

}  // namespace edsr
