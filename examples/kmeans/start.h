// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "points.h"

namespace kmeans {

/// Where the clusters begin.
struct Start {
  std::vector<std::int64_t> rows;  ///< the points chosen, in order
  std::vector<double> centroids;   ///< [clusters, columns], in quanta
};

/// The smallest of these is the key of a point that is chosen with a probability proportional to
/// its weight: -log(u) / weight, u uniform in (0, 1) and a pure function of (seed, round, row)
/// (Efraimidis, Spirakis, "Weighted random sampling with a reservoir", IPL 97, 2006). Infinite for
/// a weight of 0.
double choice_key(std::uint64_t seed, std::int64_t round, std::int64_t row, double weight);

/// Chooses points by k-means++ (Arthur, Vassilvitskii, SODA 2007, section 2.2): the first
/// uniformly, each further one with a probability proportional to the squared distance from the
/// nearest chosen one. Collective. The choice is a smallest key, not a draw from a running sum, and
/// so is the same on any number of ranks. If fewer points are distinct, some are chosen again.
Start choose_start(const Points& points, std::int64_t clusters, std::uint64_t seed);

}  // namespace kmeans
