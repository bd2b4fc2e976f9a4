// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model.h"
#include "photographs.h"

namespace edsr {

/// Figures of one held-out photograph, in dB.
struct PhotographScore {
  std::string name;
  double bicubic = 0;
  double network = 0;
};

struct Evaluation {
  std::vector<PhotographScore> photographs;
  double psnr_bicubic = 0;  ///< mean over the photographs
  double psnr_network = 0;
};

/// Returns the peak signal-to-noise ratio in dB of two uint8 images [3, H, W], over all three RGB
/// channels (not over luma alone), peak 255, after leaving out `border` pixels on each side;
/// infinity when equal. For super-resolution the border is the scale, as the literature has it.
double psnr(const torch::Tensor& image, const torch::Tensor& reference, std::int64_t border);

/// Enlarges a low-resolution image, uint8 [3, H, W] -> uint8 [3, H * scale, W * scale].
torch::Tensor enlarge(Edsr& network, const torch::Tensor& low);

/// Returns the PSNR of the network and of plain bicubic enlargement against the originals.
/// Collective: rank r takes photographs r, r + size, ...; every rank returns the whole table.
Evaluation evaluate(Edsr& network, const std::vector<Photograph>& photographs);

/// Returns a picture to look at: a row for each photograph (the first four), showing the part with
/// the most detail as low resolution, bicubic, EDSR and original, all enlarged to the same size
/// without smoothing. uint8 [3, H, W].
torch::Tensor compare_side_by_side(Edsr& network, const std::vector<Photograph>& photographs);

}  // namespace edsr
