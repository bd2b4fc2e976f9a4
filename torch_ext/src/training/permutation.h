// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace ronde::detail {

/// Returns a uniform number in [0, bound). Draws from the incomplete last block of `bound` values
/// are rejected.
inline std::uint64_t below(std::uint64_t bound, std::mt19937_64& engine) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t incomplete = (kMax % bound + 1) % bound;
  std::uint64_t draw = engine();
  while (draw > kMax - incomplete) draw = engine();
  return draw % bound;
}

/// Fisher-Yates shuffle, from the end (Knuth, TAOCP vol. 2, 3.4.2, algorithm P) of 0 to size - 1.
/// Depends on the arguments alone, with every compiler and library: the standard fixes
/// std::mt19937_64 and std::seed_seq, but neither std::shuffle nor its distributions. Checkpoints
/// and reproducible runs rely on it: never change it.
inline std::vector<std::size_t> permutation(std::size_t size, std::uint64_t seed,
                                            std::uint64_t epoch) {
  constexpr std::uint64_t kLow = 0xffffffffU;
  std::seed_seq words{seed & kLow, seed >> 32, epoch & kLow, epoch >> 32};
  std::mt19937_64 engine(words);
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = size; i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(below(i, engine))]);
  }
  return order;
}

}  // namespace ronde::detail
