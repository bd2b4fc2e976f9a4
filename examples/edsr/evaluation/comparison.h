// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "evaluation/evaluation.h"
#include "images/photographs.h"
#include "model.h"

namespace edsr {

/// A picture to look at: a row for each photograph (the first four), showing the part with the most
/// detail as low resolution, bicubic, EDSR and original, all enlarged to the same size without
/// smoothing and labelled with their PSNR. uint8 [3, H, W].
torch::Tensor compare_side_by_side(Edsr& network, const std::vector<Photograph>& photographs,
                                   const Evaluation& evaluation);

}  // namespace edsr
