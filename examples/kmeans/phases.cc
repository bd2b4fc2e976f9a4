// SPDX-License-Identifier: Apache-2.0
#include "phases.h"

#include <numeric>

#include "common/benchmark/statistics.h"
#include "exchange.h"

namespace kmeans {

std::vector<PhaseSummary> PhaseTimes::summarize() const {
  std::vector<double> slowest;
  std::vector<double> medians;
  for (const std::vector<double>& seconds : seconds_) {
    slowest.push_back(std::accumulate(seconds.begin(), seconds.end(), 0.0));
    medians.push_back(seconds.empty() ? 0.0 : example::median(seconds));
  }
  std::vector<double> means = slowest;
  allreduce_max(slowest, "times, slowest");
  allreduce_average(means, "times, mean");
  allreduce_average(medians, "times, medians");
  std::vector<PhaseSummary> summaries;
  for (std::size_t i = 0; i < seconds_.size(); ++i) {
    summaries.push_back({means[i], slowest[i], medians[i]});
  }
  return summaries;
}

}  // namespace kmeans
