// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/training/permutation.h"

#include <limits>
#include <numeric>
#include <random>
#include <utility>

namespace ronde::detail {
namespace {

// Uniform in [0, bound): draws from the incomplete last block of `bound` values are rejected.
std::uint64_t below(std::uint64_t bound, std::mt19937_64& engine) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t incomplete = (kMax % bound + 1) % bound;
  std::uint64_t draw = engine();
  while (draw > kMax - incomplete) draw = engine();
  return draw % bound;
}

}  // namespace

// Fisher-Yates, from the end (Knuth, TAOCP vol. 2, 3.4.2, algorithm P).
std::vector<std::size_t> permutation(std::size_t size, std::uint64_t seed, std::uint64_t epoch) {
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
