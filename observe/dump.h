// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/src/base/json.h"
#include "ronde/plugin/events.h"
#include "ronde/stats.h"

namespace ronde {

/// What a rank was doing at a time, as its runtime knows.
struct RankSnapshot {
  std::string world = {};
  int rank = 0;
  int ranks = 1;
  std::int64_t at_ns = 0;  ///< of std::chrono::steady_clock
  std::map<std::uint32_t, std::vector<int>> ranks_of_sets = {};
  std::vector<Event> events = {};  ///< the most recent ones, oldest first
  std::uint64_t lost_events = 0;   ///< before these
  Stats counters = {};
};

/// The dump that `ronde prof hang` reads. `reason`: error, stall, request or signal.
nlohmann::ordered_json to_json(const RankSnapshot& snapshot, std::string_view reason,
                               const std::string& text);

}  // namespace ronde
