// SPDX-License-Identifier: Apache-2.0
#include "ring.h"

#include <torch/torch.h>

#include <cmath>

namespace gan {
namespace {

torch::Tensor middles() {
  const torch::Tensor angles = torch::arange(kClouds, torch::kFloat64) * (2 * M_PI / kClouds);
  return kRadius * torch::stack({angles.cos(), angles.sin()}, 1);
}

}  // namespace

torch::Tensor draw_ring(std::int64_t points, const at::Generator& generator) {
  const torch::Tensor clouds = torch::randint(kClouds, {points}, generator, torch::kInt64);
  const torch::Tensor offsets = torch::randn({points, 2}, generator, torch::kFloat64);
  return middles().index_select(0, clouds) + kSpread * offsets;
}

torch::Tensor count_by_cloud(const torch::Tensor& points) {
  return (torch::cdist(points, middles()) < 3 * kSpread).sum(0);
}

}  // namespace gan
