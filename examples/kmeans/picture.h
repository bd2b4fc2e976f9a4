// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kmeans {

struct Picture {
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::vector<std::uint8_t> rgb;  ///< rows from the top
};

/// The side of the square image that so many values are, at least 2; nothing if they are none.
std::optional<std::int64_t> square_side(std::int64_t values);

/// Each centroid as an enlarged grey image of side x side values, from the smallest value of all
/// centroids in black to the largest in white; side by side in rows, in the order of the clusters.
Picture draw_centroids(std::span<const double> centroids, std::int64_t side);

}  // namespace kmeans
