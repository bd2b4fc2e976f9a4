// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include <torch/types.h>

namespace edsr {

/// Height of draw_label's letters, pixels.
inline constexpr std::int64_t kLabelHeight = 14;

/// Writes `text` in white into a uint8 image [3, H, W], its upper left corner at (top, left), in a
/// fixed 5 x 7 font at twice its size; what does not fit is cut off. The font has capitals, digits,
/// point, minus and space; other characters come out as a space.
void draw_label(torch::Tensor& image, std::string_view text, std::int64_t top, std::int64_t left);

}  // namespace edsr
