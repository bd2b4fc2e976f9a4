// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <vector>

namespace ronde {

/// The ranks from `first` to `last`.
struct RankRange {
  int first = 0;  ///< at least 0
  int last = 0;   ///< not below `first`

  /// Compare both ends.
  friend auto operator<=>(const RankRange&, const RankRange&) = default;
};

/// Ranks in ascending order, as ranges with gaps between them, so that almost all ranks of a large
/// group take little memory.
using RankRanges = std::vector<RankRange>;

/// Returns the ranges of `ranks`, which ascend.
RankRanges ranges_of(const std::vector<int>& ranks);
/// Returns the ranks, ascending.
std::vector<int> ranks_in(const RankRanges& ranges);

}  // namespace ronde
