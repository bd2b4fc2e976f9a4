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

/// All parts, in the order in which they are shown.
using Stats = std::vector<StatsGroup>;

}  // namespace ronde
