// SPDX-License-Identifier: Apache-2.0
#include "picture.h"

#include <catch2/catch.hpp>
#include <vector>

namespace kmeans {
namespace {

int shade(const Picture& picture, std::int64_t x, std::int64_t y) {
  const auto pixel = static_cast<std::size_t>(3 * (y * picture.width + x));
  REQUIRE(picture.rgb[pixel] == picture.rgb[pixel + 1]);
  REQUIRE(picture.rgb[pixel] == picture.rgb[pixel + 2]);
  return picture.rgb[pixel];
}

}  // namespace

TEST_CASE("square images are told from other points") {
  CHECK(square_side(64) == 8);
  CHECK(square_side(4) == 2);
  CHECK(square_side(784) == 28);
  for (const int values : {1, 2, 3, 5, 63, 65}) CHECK_FALSE(square_side(values));
}

TEST_CASE("every value of every centroid is a block of its shade") {
  // Three tiles of 2x2 values, -1 to 4: tiles are 96 pixels wide, the gaps 6.
  const std::vector<double> centroids = {-1, 0, 1, 4, 4, 4, -1, -1, 1.5, 1.5, 1.5, 1.5};
  const Picture picture = draw_centroids(centroids, 2);
  CHECK(picture.width == 3 * 102 + 6);
  CHECK(picture.height == 102 + 6);
  CHECK(picture.rgb.size() == static_cast<std::size_t>(3 * picture.width * picture.height));
  const std::vector<int> expected = {0, 51, 102, 255, 255, 255, 0, 0, 128, 128, 128, 128};
  for (std::int64_t i = 0; i < 12; ++i) {
    const std::int64_t left = 6 + i / 4 * 102 + i % 2 * 48;
    const std::int64_t top = 6 + i / 2 % 2 * 48;
    INFO("value " << i);
    CHECK(shade(picture, left, top) == expected[static_cast<std::size_t>(i)]);
    CHECK(shade(picture, left + 47, top + 47) == expected[static_cast<std::size_t>(i)]);
  }
}

TEST_CASE("ten tiles stand in two rows, and large images are not enlarged") {
  const Picture digits = draw_centroids(std::vector<double>(640, 3.0), 8);
  CHECK(digits.width == 5 * 102 + 6);
  CHECK(digits.height == 2 * 102 + 6);
  const Picture large = draw_centroids(std::vector<double>(200 * 200), 200);
  CHECK(large.width == 212);
  CHECK(large.height == 212);
}

}  // namespace kmeans
