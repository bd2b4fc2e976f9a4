// SPDX-License-Identifier: Apache-2.0
#include "start.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>

namespace kmeans {

TEST_CASE("points are chosen as often as their weights say") {
  constexpr std::array<double, 5> kWeights = {1, 0, 2, 4, 0.5};
  constexpr double kSum = 7.5;
  constexpr int kDraws = 20000;
  for (const std::int64_t round : {0, 3}) {
    std::array<int, kWeights.size()> chosen{};
    for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
      std::size_t best = 0;
      std::array<double, kWeights.size()> keys{};
      for (std::size_t row = 0; row < keys.size(); ++row) {
        keys[row] = choice_key(seed, round, static_cast<std::int64_t>(row), kWeights[row]);
        if (keys[row] < keys[best]) best = row;
      }
      ++chosen[best];
    }
    for (std::size_t row = 0; row < chosen.size(); ++row) {
      INFO("row " << row << " in round " << round);
      const double share = kWeights[row] / kSum;
      const double deviation = std::sqrt(share * (1 - share) / kDraws);
      CHECK(std::abs(chosen[row] / double(kDraws) - share) <= 4 * deviation);
    }
  }
}

}  // namespace kmeans
