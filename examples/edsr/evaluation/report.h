// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "evaluation/evaluation.h"

namespace edsr {

/// The final table of a run. An "image" is one training patch.
struct Report {
  int ranks = 1;
  std::int64_t steps = 0;  ///< those resumed included
  double images_per_s_per_rank = 0;
  double images_per_s_total = 0;
  double loss_first = 0;  ///< mean absolute error of the first step, pixels in [0, 1]
  double loss_last = 0;   ///< of the last step
  bool parameters_identical = false;
  Evaluation evaluation;
};

/// The figures as a table for people, ending in a line break.
std::string to_table(const Report& report);

/// The figures as a JSON object: ranks, images_per_s_per_rank, images_per_s_total, steps,
/// loss_first, loss_last, psnr_bicubic, psnr_network, parameters_identical.
std::string to_json(const Report& report);

}  // namespace edsr
