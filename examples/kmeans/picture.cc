// SPDX-License-Identifier: Apache-2.0
#include "picture.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kmeans {
namespace {

constexpr std::int64_t kTilePixels = 96;
constexpr std::int64_t kGapPixels = 6;
constexpr std::array<std::uint8_t, 3> kGapColor = {32, 64, 128};

/// The values of one tile, each a block of `zoom` x `zoom` pixels.
void draw_tile(Picture& picture, std::int64_t left, std::int64_t top, std::int64_t zoom,
               std::int64_t side, const std::vector<std::uint8_t>& grey) {
  for (std::int64_t y = 0; y < side * zoom; ++y) {
    for (std::int64_t x = 0; x < side * zoom; ++x) {
      const std::int64_t pixel = (top + y) * picture.width + left + x;
      const auto shade = grey[static_cast<std::size_t>(y / zoom * side + x / zoom)];
      std::fill_n(picture.rgb.begin() + 3 * pixel, 3, shade);
    }
  }
}

}  // namespace

std::optional<std::int64_t> square_side(std::int64_t values) {
  const auto side = static_cast<std::int64_t>(std::llround(std::sqrt(values)));
  if (side < 2 || side * side != values) return std::nullopt;
  return side;
}

Picture draw_centroids(std::span<const double> centroids, std::int64_t side) {
  const std::int64_t values = side * side;
  const std::int64_t count = static_cast<std::int64_t>(centroids.size()) / values;
  // About twice as many tiles wide as high.
  const auto across = static_cast<std::int64_t>(std::ceil(std::sqrt(2.0 * double(count))));
  const std::int64_t zoom = std::max<std::int64_t>(1, kTilePixels / side);
  const std::int64_t pitch = side * zoom + kGapPixels;
  Picture picture{.width = std::min(across, count) * pitch + kGapPixels,
                  .height = (count + across - 1) / across * pitch + kGapPixels,
                  .rgb = {}};
  for (std::int64_t i = 0; i < picture.width * picture.height; ++i) {
    picture.rgb.insert(picture.rgb.end(), kGapColor.begin(), kGapColor.end());
  }
  const auto [least, greatest] = std::minmax_element(centroids.begin(), centroids.end());
  const double range = *greatest > *least ? *greatest - *least : 1;
  std::vector<std::uint8_t> grey(static_cast<std::size_t>(values));
  for (std::int64_t tile = 0; tile < count; ++tile) {
    const auto centroid = centroids.subspan(static_cast<std::size_t>(tile * values), grey.size());
    std::transform(centroid.begin(), centroid.end(), grey.begin(), [&](double value) {
      return static_cast<std::uint8_t>(std::lround(255 * (value - *least) / range));
    });
    draw_tile(picture, kGapPixels + tile % across * pitch, kGapPixels + tile / across * pitch, zoom,
              side, grey);
  }
  return picture;
}

}  // namespace kmeans
