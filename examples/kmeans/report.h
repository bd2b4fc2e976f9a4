// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "phases.h"

namespace kmeans {

/// What a cluster has of the label that is most frequent in it (of equals, the one that the file
/// has first).
struct ClusterLabel {
  std::string name;
  std::int64_t points = 0;
};

/// The result of a run, in the data's own units.
struct Report {
  std::int64_t points = 0;
  std::int64_t columns = 0;
  int ranks = 1;
  std::vector<std::int64_t> start_rows;  ///< from 0
  std::int64_t iterations = 0;
  std::int64_t empty_moved = 0;  ///< see Clustering
  bool converged = false;
  double inertia = 0;                ///< sum of squared distances to the nearest centroids
  std::vector<std::int64_t> counts;  ///< points of each cluster
  std::vector<ClusterLabel> labels;  ///< of each cluster; empty without labels
  std::int64_t allreduces = 0;
  std::int64_t allreduce_bytes = 0;  ///< of one, on each rank
  std::vector<PhaseSummary> phases;

  /// The share of points whose label is the most frequent one of their cluster.
  std::optional<double> purity() const;
};

/// The most frequent label of each of `clusters`. `assignments` and `labels` are those of all
/// points; empty if `labels` is.
std::vector<ClusterLabel> label_clusters(std::int64_t clusters,
                                         const std::vector<std::int32_t>& assignments,
                                         const std::vector<std::int32_t>& labels,
                                         const std::vector<std::string>& label_names);

/// For people, ending in a line break.
std::string to_text(const Report& report);

/// A JSON object: points, columns, clusters, ranks, start_rows, iterations, empty_moved,
/// converged, inertia, purity (null without labels), counts, labels, allreduces, allreduce_bytes,
/// and phases: an object of mean_s, slowest_s and median_s for each.
std::string to_json(const Report& report);

}  // namespace kmeans
