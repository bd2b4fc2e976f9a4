// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/smooth.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ronde::tool {

// Finds a shortest path by dynamic programming (Viterbi 1967): `before[size][choice]` is the choice
// at the size before, on the best path that ends with `choice`.
std::vector<std::size_t> smooth_choices(const std::vector<std::vector<double>>& times,
                                        double price) {
  if (times.empty()) return {};
  const std::size_t choices = times.front().size();
  std::vector<double> cost(choices, 0);
  std::vector<std::vector<std::size_t>> before;
  for (const std::vector<double>& of_size : times) {
    const auto cheapest = static_cast<std::size_t>(std::ranges::min_element(cost) - cost.begin());
    const double with_change = cost[cheapest] + price;
    std::vector<std::size_t>& from = before.emplace_back(choices);
    std::iota(from.begin(), from.end(), std::size_t{0});
    for (std::size_t choice = 0; choice < choices; ++choice) {
      if (before.size() > 1 && with_change < cost[choice]) {
        cost[choice] = with_change;
        from[choice] = cheapest;
      }
      cost[choice] += std::log(of_size[choice]);
    }
  }
  std::vector<std::size_t> path(times.size());
  path.back() = static_cast<std::size_t>(std::ranges::min_element(cost) - cost.begin());
  for (std::size_t size = times.size() - 1; size > 0; --size) {
    path[size - 1] = before[size][path[size]];
  }
  return path;
}

}  // namespace ronde::tool
