// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>

#include <ATen/core/Generator.h>

/// Points of the plane in clouds around a circle, a common test of generators: one that has learned
/// a few clouds only is easily found out.
namespace gan {

constexpr std::int64_t kClouds = 8;
constexpr double kRadius = 2;
constexpr double kSpread = 0.1;  // standard deviation of a cloud, in both directions

/// `points` points, each of a cloud chosen at random: [points, 2], 64-bit floats.
torch::Tensor draw_ring(std::int64_t points, const at::Generator& generator);

/// How many points are within three standard deviations of each cloud's middle: [kClouds], int64.
torch::Tensor count_by_cloud(const torch::Tensor& points);

}  // namespace gan
