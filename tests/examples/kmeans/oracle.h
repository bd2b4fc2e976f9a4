// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace kmeans::testing {

using Rows = std::vector<std::vector<double>>;

struct Expected {
  Rows centroids;
  std::vector<std::int32_t> assignments;
  std::int64_t iterations = 0;
  std::int64_t empty_moved = 0;
  bool converged = false;
  double inertia = 0;
};

/// K-means in double precision by one thread, written from the documentation of
/// examples/kmeans/cluster.h alone.
Expected plain_kmeans(const Rows& points, const Rows& start, std::int64_t limit);

/// All rows as one, times `factor`.
std::vector<double> flatten(const Rows& rows, double factor = 1);

/// The points with these numbers.
Rows rows_at(const Rows& points, const std::vector<std::int64_t>& rows);

/// Uniform whole numbers below `bound`.
Rows whole_numbers(std::size_t rows, std::size_t columns, unsigned bound, unsigned seed);

}  // namespace kmeans::testing
