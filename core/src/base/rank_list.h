// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/src/base/text.h"
#include "ronde/rank_ranges.h"

namespace ronde {

/// Returns "rank 3", for texts.
inline std::string rank_name(int rank) {
  return "rank " + std::to_string(rank);
}

/// Returns "rank 3" or "ranks 0-2,5", for texts. `ranks` must ascend; an empty list gives "no
/// rank".
/// @{
std::string format_ranks(const std::vector<int>& ranks);
std::string format_ranges(const RankRanges& ranks);
/// @}

/// Returns "0,2,1", in the order of `ranks`.
std::string list_ranks(const std::vector<int>& ranks);
/// Parses a text that list_ranks() made.
std::vector<int> ranks_in(const std::string& text);

/// Returns the place of a rank of the group in `members`, or -1.
int rank_within(const std::vector<int>& members, int rank);

/// Returns the ranks of the group at these places in `members`, ascending.
std::vector<int> ranks_at(const std::vector<int>& places, const std::vector<int>& members);

/// Checks the ranks of a set in a group of `size`.
Problem set_error(const std::vector<int>& ranks, int size);

}  // namespace ronde
