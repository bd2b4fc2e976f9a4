// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>

#include "cluster.h"
#include "points.h"

namespace kmeans {

TEST_CASE("the largest sum and the largest sum of squares fit 64 bits") {
  for (const std::int64_t terms :
       {1LL, 2LL, 1000LL, 1024LL, 1025LL, 1797LL, 1LL << 31, 1LL << 40}) {
    const int bits = value_bits(terms);
    INFO(terms << " terms, " << bits << " bits");
    CHECK(bits <= 52);
    CHECK(bits >= 20);
    CHECK(static_cast<double>(terms) * std::ldexp(1.0, bits) <= 0x1p62);
    for (const std::int64_t columns : {1LL, 3LL, 64LL, 1LL << 20}) {
      const SquareSum squares(terms, columns, bits);
      const double largest = static_cast<double>(columns) * std::ldexp(1.0, 2 * (bits + 1));
      CHECK(static_cast<double>(terms) * static_cast<double>(squares.term(largest)) <= 0x1p62);
      CHECK(squares.value(squares.term(largest)) == Approx(largest).epsilon(1e-6));
      CHECK(squares.term(0) == 0);
    }
  }
}

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
