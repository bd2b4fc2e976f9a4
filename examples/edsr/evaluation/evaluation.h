// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "images/photographs.h"
#include "model.h"

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

/// Enlarges a low-resolution image, uint8 [3, H, W] -> uint8 [3, H * scale, W * scale].
torch::Tensor enlarge(Edsr& network, const torch::Tensor& low);

/// PSNR of the network and of plain bicubic enlargement against the originals. Collective: rank r
/// takes photographs r, r + size, ...; every rank returns the whole table.
Evaluation evaluate(Edsr& network, const std::vector<Photograph>& photographs);

}  // namespace edsr
