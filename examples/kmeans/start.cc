// SPDX-License-Identifier: Apache-2.0
#include "start.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "common/counter_random.h"
#include "exchange.h"

namespace kmeans {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A key and its row; of equal keys the first row counts.
using Candidate = std::pair<double, double>;

/// The row with the smallest key of all ranks.
std::int64_t choose_row(const Points& points, const std::vector<double>& weights,
                        std::uint64_t seed, std::int64_t round) {
  Candidate best{kInfinity, kInfinity};
  for (std::int64_t local = 0; local < points.own(); ++local) {
    const std::int64_t row = points.row(local);
    const double key = choice_key(seed, round, row, weights[static_cast<std::size_t>(local)]);
    best = std::min(best, Candidate{key, static_cast<double>(row)});
  }
  const std::array<double, 2> mine = {best.first, best.second};
  const std::vector<double> all = allgather(mine, "smallest key");
  for (std::size_t i = 0; i < all.size(); i += 2) best = std::min(best, {all[i], all[i + 1]});
  return static_cast<std::int64_t>(best.second);
}

}  // namespace

double choice_key(std::uint64_t seed, std::int64_t round, std::int64_t row, double weight) {
  if (weight == 0) return kInfinity;
  example::CounterRandom random(seed, static_cast<std::uint64_t>(round),
                                static_cast<std::uint64_t>(row));
  return -std::log(random.uniform()) / weight;
}

Start choose_start(const Points& points, std::int64_t clusters, std::uint64_t seed) {
  Start start;
  std::vector<double> weights(static_cast<std::size_t>(points.own()), 1.0);
  for (std::int64_t round = 0; round < clusters; ++round) {
    const std::int64_t row = choose_row(points, weights, seed, round);
    const std::vector<double> chosen = fetch_point(points, row);
    for (std::int64_t local = 0; local < points.own(); ++local) {
      double& weight = weights[static_cast<std::size_t>(local)];
      const double distance = squared_distance(points.point(local), chosen);
      weight = round == 0 ? distance : std::min(weight, distance);
    }
    start.rows.push_back(row);
    start.centroids.insert(start.centroids.end(), chosen.begin(), chosen.end());
  }
  return start;
}

}  // namespace kmeans
