// SPDX-License-Identifier: Apache-2.0
#include "tools/prof/report/lost_time.h"

#include <algorithm>
#include <functional>

namespace ronde::prof {
namespace {

double a_step(const Figures& figures, double us) {
  return us / std::max(1.0, figures.step_time.count);
}

/// By rank, what it waits in a step for what it submitted last itself.
std::map<int, double> agreement_times(const Run& run) {
  std::map<int, double> times;
  for (const Figures& each : run.per_rank) {
    const auto own = each.last_ranks.find(each.rank);
    if (own != each.last_ranks.end()) times[each.rank] = a_step(each, own->second.lost_us);
  }
  return times;
}

}  // namespace

std::vector<LostTime> lost_times(const Run& run) {
  const std::map<int, double> agreement = agreement_times(run);
  std::vector<LostTime> all;
  for (const Figures& each : run.per_rank) {
    LostTime& lost = all.emplace_back();
    lost.rank = each.rank;
    for (const auto& [rank, late] : each.last_ranks) {
      if (rank == each.rank) continue;
      const auto own = agreement.find(rank);
      const double us = a_step(each, late.lost_us) - (own == agreement.end() ? 0.0 : own->second);
      if (us <= 0) continue;
      lost.for_rank[rank] = us;
      lost.us += us;
    }
    const double whole = each.step_time.count > 0 ? each.step_time.mean() : each.seconds * 1e6;
    lost.share = whole > 0 ? lost.us / whole : 0;
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &LostTime::us);
  return all;
}

std::string latest_for(const LostTime& lost) {
  const auto latest =
      std::ranges::max_element(lost.for_rank, {}, [](const auto& each) { return each.second; });
  if (latest == lost.for_rank.end()) return "-";
  return latest->first < 0 ? "ranks of one host" : "rank " + std::to_string(latest->first);
}

}  // namespace ronde::prof
