// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ronde {

/// Counters of what one rank did since init, grouped by part: `{"negotiation", {{"messages_sent",
/// 12}, ...}}`. Times are in microseconds, sizes in bytes; the unit ends the name.
struct StatsGroup {
  std::string part;
  std::vector<std::pair<std::string, std::uint64_t>> counters;
};

/// The version that ronde::stats() writes first: raised if a part or a counter is renamed, removed
/// or changes its meaning, and not if one is added.
inline constexpr std::uint64_t kStatsLayoutVersion = 4;

/// All parts, in the order in which they are shown.
using Stats = std::vector<StatsGroup>;

}  // namespace ronde
