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

/// Returns the key of a point. The point with the smallest key is chosen, with a probability
/// proportional to its weight: -log(u) / weight, u uniform in (0, 1) and a pure function of (seed,
/// round, row) (Efraimidis, Spirakis, "Weighted random sampling with a reservoir", IPL 97, 2006).
/// Infinite for a weight of 0.
double choice_key(std::uint64_t seed, std::int64_t round, std::int64_t row, double weight);

/// Chooses points by k-means++ (Arthur, Vassilvitskii, SODA 2007, section 2.2): the first
/// uniformly, each further one with a probability proportional to the squared distance from the
/// nearest chosen one. Collective. The choice is a smallest key, not a draw from a running sum, and
/// so is the same on any number of ranks. If fewer points are distinct, some are chosen again.
Start choose_start(const Points& points, std::int64_t clusters, std::uint64_t seed);

struct Clustering {
  std::int64_t clusters = 0;
  std::vector<double> centroids;          ///< [clusters, columns], in quanta
  std::vector<std::int64_t> counts;       ///< points of each, over all ranks
  std::vector<std::int32_t> assignments;  ///< of this rank's points
  std::int64_t iterations = 0;            ///< how often the centroids were moved
  std::int64_t empty_moved = 0;           ///< how often one without points was moved to a point
  bool converged = false;                 ///< the last iteration changed no assignment
  double inertia = 0;                     ///< sum of squared distances, in squared quanta
  std::int64_t allreduces = 0;
  std::int64_t allreduce_bytes = 0;  ///< of one, on each rank
};

/// K-means by Lloyd's iteration ("Least squares quantization in PCM", IEEE Trans. Inf. Theory 28,
/// 1982) from the given centroids, until no assignment changes, or the centroids have been moved
/// `limit` times. Collective; the same result, bit for bit, on any number of ranks. Of two
/// centroids at the same distance the first is taken. A centroid that loses all its points moves to
/// the point farthest from its own centroid, several such to the farthest ones in turn.
Clustering cluster(const Points& points, std::vector<double> centroids, std::int64_t limit);

}  // namespace kmeans
