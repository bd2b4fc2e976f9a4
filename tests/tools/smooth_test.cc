// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/smooth.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace {

using Choices = std::vector<std::size_t>;

/// With a price of 10 %.
Choices smooth_choices(const std::vector<std::vector<double>>& times) {
  return ronde::tool::smooth_choices(times, std::log(1.1));
}

TEST_CASE("the fastest algorithm of each size is chosen, unless a change gains too little") {
  CHECK(smooth_choices({}).empty());
  CHECK(smooth_choices({{2, 1, 3}}) == Choices{1});
  CHECK(smooth_choices({{1, 2}, {1, 2}, {2, 1}, {2, 1}}) == Choices{0, 0, 1, 1});
  CHECK(smooth_choices({{1, 2}, {1.03, 1}, {1, 2}}) == Choices{0, 0, 0});  // noise
  CHECK(smooth_choices({{1, 2}, {3, 1}, {1, 2}}) == Choices{0, 1, 0});     // far more than that
  CHECK(smooth_choices({{1, 1.05}, {1.05, 1}, {1.05, 1}}) == Choices{1, 1, 1});
  CHECK(ronde::tool::smooth_choices({{1, 4}, {3, 1}}, 1.5) == Choices{0, 0});
}

TEST_CASE("gains too small for a change each justify one together") {
  CHECK(smooth_choices({{1, 9}, {1.04, 1}, {1.04, 1}}) == Choices{0, 0, 0});
  CHECK(smooth_choices({{1, 9}, {1.04, 1}, {1.04, 1}, {1.04, 1}}) == Choices{0, 1, 1, 1});
}

}  // namespace
