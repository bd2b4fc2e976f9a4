// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
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

inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

inline std::size_t nearest(const std::vector<double>& point, const Rows& centroids) {
  std::size_t best = 0;
  for (std::size_t c = 1; c < centroids.size(); ++c) {
    if (distance(point, centroids[c]) < distance(point, centroids[best])) best = c;
  }
  return best;
}

/// Returns the points by their distance to their centroids, farthest first.
inline std::vector<std::size_t> by_distance(const Rows& points, const Rows& centroids,
                                            const std::vector<std::int32_t>& assignments) {
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return distance(points[a], centroids[static_cast<std::size_t>(assignments[a])]) >
           distance(points[b], centroids[static_cast<std::size_t>(assignments[b])]);
  });
  return order;
}

inline Rows means(const Rows& points, const Rows& before,
                  const std::vector<std::int32_t>& assignments, std::int64_t& empty_moved) {
  Rows after = before;
  const std::vector<std::size_t> farthest = by_distance(points, before, assignments);
  std::size_t taken = 0;
  for (std::size_t c = 0; c < before.size(); ++c) {
    std::vector<double> sum(points[0].size());
    double count = 0;
    for (std::size_t p = 0; p < points.size(); ++p) {
      if (assignments[p] != static_cast<std::int32_t>(c)) continue;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += points[p][i];
      ++count;
    }
    if (count > 0) {
      for (std::size_t i = 0; i < sum.size(); ++i) after[c][i] = sum[i] / count;
      continue;
    }
    const std::size_t p = farthest[taken++];
    if (distance(points[p], before[static_cast<std::size_t>(assignments[p])]) > 0) {
      after[c] = points[p];
      ++empty_moved;
    }
  }
  return after;
}

/// Returns uniform whole numbers below `bound`.
inline Rows whole_numbers(std::size_t rows, std::size_t columns, unsigned bound, unsigned seed) {
  std::mt19937 random(seed);
  Rows points(rows, std::vector<double>(columns));
  for (auto& point : points) {
    for (double& value : point) value = static_cast<double>(random() % bound);
  }
  return points;
}

/// Returns all rows as one, times `factor`.
inline std::vector<double> flatten(const Rows& rows, double factor = 1) {
  std::vector<double> values;
  for (const auto& row : rows) {
    for (const double value : row) values.push_back(value * factor);
  }
  return values;
}

/// Returns the points with these numbers.
inline Rows rows_at(const Rows& points, const std::vector<std::int64_t>& rows) {
  Rows some;
  for (const std::int64_t row : rows) some.push_back(points[static_cast<std::size_t>(row)]);
  return some;
}

/// K-means in double precision by one thread, written from the documentation of
/// examples/kmeans/cluster.h alone.
inline Expected plain_kmeans(const Rows& points, const Rows& start, std::int64_t limit) {
  Expected result;
  result.centroids = start;
  while (true) {
    std::vector<std::int32_t> assignments;
    result.inertia = 0;
    for (const std::vector<double>& point : points) {
      const std::size_t cluster = nearest(point, result.centroids);
      assignments.push_back(static_cast<std::int32_t>(cluster));
      result.inertia += distance(point, result.centroids[cluster]);
    }
    result.converged = assignments == result.assignments;
    result.assignments = assignments;
    if (result.converged || result.iterations == limit) return result;
    result.centroids = means(points, result.centroids, assignments, result.empty_moved);
    ++result.iterations;
  }
}

}  // namespace kmeans::testing
