// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <optional>

namespace ronde {

/// How algorithms that need a power of two of ranks do with any number: of the first 2 r ranks, r
/// of them too many, each even one gives its data to the next rank, takes no part, and gets the
/// result from it [Thakur].
struct PowerOfTwo {
  PowerOfTwo(std::size_t rank, std::size_t ranks)
      : size(std::bit_floor(ranks)), folded(ranks - size) {
    if (rank >= 2 * folded) {
      place = rank - folded;
    } else if (rank % 2 == 1) {
      place = rank / 2;
      gives = rank - 1;
    } else {
      takes = rank + 1;
    }
  }

  /// The rank at a place.
  std::size_t rank_at(std::size_t where) const noexcept {
    return where < folded ? 2 * where + 1 : where + folded;
  }

  std::size_t size;                  ///< ranks that take part: the power of two
  std::size_t folded;                ///< ranks that do not
  std::optional<std::size_t> place;  ///< of this rank among those that do
  std::optional<std::size_t> gives;  ///< the rank that gives this one its data
  std::optional<std::size_t> takes;  ///< the rank that this one gives its data to
};

}  // namespace ronde
