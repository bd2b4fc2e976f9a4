// SPDX-License-Identifier: Apache-2.0
#include "evaluation/metrics.h"

#include <cmath>
#include <limits>

namespace edsr {

double psnr(const torch::Tensor& image, const torch::Tensor& reference, std::int64_t border) {
  TORCH_CHECK(image.sizes() == reference.sizes() && image.dim() == 3, "psnr of ", image.sizes(),
              " and ", reference.sizes());
  TORCH_CHECK(image.size(1) > 2 * border && image.size(2) > 2 * border, "psnr: an image of ",
              image.sizes(), " is all border of ", border);
  const auto inner = [border](const torch::Tensor& whole) {
    return whole.slice(1, border, whole.size(1) - border)
        .slice(2, border, whole.size(2) - border)
        .to(torch::kInt64);
  };
  // Squares of byte differences summed as integers: exact.
  const torch::Tensor difference = inner(image) - inner(reference);
  const auto squares = static_cast<double>(difference.square().sum().item<std::int64_t>());
  if (squares == 0) return std::numeric_limits<double>::infinity();
  const double mean = squares / static_cast<double>(difference.numel());
  return 10 * std::log10(255.0 * 255.0 / mean);
}

}  // namespace edsr
