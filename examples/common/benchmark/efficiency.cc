// SPDX-License-Identifier: Apache-2.0
#include "common/benchmark/efficiency.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/benchmark/statistics.h"

namespace example {

Efficiency summarize(const std::vector<Round>& rounds) {
  std::vector<double> connected;
  std::vector<double> unconnected;
  std::vector<double> in_step;
  std::vector<double> ratios;
  for (const Round& round : rounds) {
    connected.push_back(round.step_ms);
    unconnected.push_back(round.step_ms_unconnected);
    if (round.step_ms_in_step) in_step.push_back(*round.step_ms_in_step);
    ratios.push_back(round.efficiency());
  }
  const auto [lowest, highest] = std::minmax_element(ratios.begin(), ratios.end());
  Round middle{median(connected), median(unconnected)};
  if (!in_step.empty()) middle.step_ms_in_step = median(in_step);
  return {middle, *lowest, *highest};
}

std::string to_json(const std::string& model, int ranks, const Efficiency& efficiency,
                    const std::optional<CacheUse>& cache) {
  nlohmann::ordered_json json{
      {"model", model},
      {"ranks", ranks},
      {"step_ms", efficiency.median.step_ms},
      {"step_ms_unconnected", efficiency.median.step_ms_unconnected},
      {"efficiency", efficiency.median.efficiency()},
  };
  if (efficiency.median.step_ms_in_step) {
    json["step_ms_in_step"] = *efficiency.median.step_ms_in_step;
  }
  if (cache) json["registration_hit_rate"] = cache->hit_rate();
  return json.dump(2) + "\n";
}

}  // namespace example
