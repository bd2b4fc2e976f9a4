// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

namespace edsr {

/// Peak signal-to-noise ratio in dB of two uint8 images [3, H, W], over all three RGB channels (not
/// over luma alone), peak 255, after leaving out `border` pixels on each side; infinity when equal.
/// For super-resolution the border is the scale, as the literature has it.
double psnr(const torch::Tensor& image, const torch::Tensor& reference, std::int64_t border);

}  // namespace edsr
