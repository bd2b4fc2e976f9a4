// SPDX-License-Identifier: Apache-2.0
#include "cluster.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "common/counter_random.h"
#include "exchange.h"

namespace kmeans {
namespace {

std::size_t index(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A key and its row; of equal keys the first row counts.
using Candidate = std::pair<double, double>;

/// Returns the row with the smallest key of all ranks.
std::int64_t choose_row(const Points& points, const std::vector<double>& weights,
                        std::uint64_t seed, std::int64_t round) {
  Candidate best{kInfinity, kInfinity};
  for (std::int64_t local = 0; local < points.own(); ++local) {
    const std::int64_t row = points.row(local);
    const double key = choice_key(seed, round, row, weights[static_cast<std::size_t>(local)]);
    best = std::min(best, Candidate{key, static_cast<double>(row)});
  }
  const std::array<double, 2> mine = {best.first, best.second};
  const std::vector<double> all =
      allgather(mine, 2 * static_cast<std::size_t>(points.part.ranks), "smallest key");
  for (std::size_t i = 0; i < all.size(); i += 2) best = std::min(best, {all[i], all[i + 1]});
  return static_cast<std::int64_t>(best.second);
}

/// The sums over the ranks, as one array of whole numbers for one allreduce.
class Totals {
 public:
  Totals(std::int64_t clusters, std::int64_t columns)
      : columns_(columns), values_(index(clusters * (columns + 1) + 2)) {
    counts_begin_ = index(clusters * columns);
  }

  /// Returns the sum of the points of a cluster, [columns].
  std::span<std::int64_t> sum(std::int64_t cluster) {
    return std::span(values_).subspan(index(cluster * columns_), index(columns_));
  }
  std::int64_t& count(std::int64_t cluster) { return values_[counts_begin_ + index(cluster)]; }
  std::int64_t& changed() { return values_[values_.size() - 2]; }
  /// See SquareSum.
  std::int64_t& squares() { return values_.back(); }

  std::span<std::int64_t> all() { return values_; }

 private:
  std::int64_t columns_;
  std::size_t counts_begin_;
  std::vector<std::int64_t> values_;
};

class Lloyd {
 public:
  Lloyd(const Points& points, std::vector<double> centroids)
      : points_(points),
        clusters_(static_cast<std::int64_t>(centroids.size()) / points.columns),
        squares_(points.rows, points.columns, points.value_bits),
        centroids_(std::move(centroids)),
        assignments_(index(points.own()), -1),
        distances_(index(points.own())) {}

  /// Assigns each point to its closest centroid. Returns how many changed.
  std::int64_t assign() {
    const std::vector<double> transposed = transpose();
    std::vector<double> sums(index(clusters_));
    std::int64_t changed = 0;
    for (std::int64_t local = 0; local < points_.own(); ++local) {
      distances_to_all(points_.point(local), transposed, sums);
      const auto nearest = std::min_element(sums.begin(), sums.end());  // the first of equals
      const auto cluster = static_cast<std::int32_t>(nearest - sums.begin());
      distances_[index(local)] = *nearest;
      changed += assignments_[index(local)] == cluster ? 0 : 1;
      assignments_[index(local)] = cluster;
    }
    return changed;
  }

  /// Returns this rank's part of the totals.
  Totals add_up(std::int64_t changed) const {
    Totals totals(clusters_, points_.columns);
    for (std::int64_t local = 0; local < points_.own(); ++local) {
      const std::int32_t cluster = assignments_[index(local)];
      const std::span<std::int64_t> sum = totals.sum(cluster);
      const std::span<const double> point = points_.point(local);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<std::int64_t>(point[i]);
      totals.count(cluster) += 1;
      totals.squares() += squares_.term(distances_[index(local)]);
    }
    totals.changed() = changed;
    return totals;
  }

  /// Moves every centroid to the mean of its points.
  void move_centroids(Totals& totals) {
    std::vector<std::int64_t> empty;
    for (std::int64_t cluster = 0; cluster < clusters_; ++cluster) {
      if (totals.count(cluster) == 0) {
        empty.push_back(cluster);
        continue;
      }
      const auto count = static_cast<double>(totals.count(cluster));
      const std::span<double> centroid = this->centroid(cluster);
      const std::span<const std::int64_t> sum = totals.sum(cluster);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        centroid[i] = static_cast<double>(sum[i]) / count;
      }
    }
    if (!empty.empty()) move_to_farthest(empty);
  }

  Clustering result(Totals& totals) && {
    Clustering result;
    result.clusters = clusters_;
    result.centroids = std::move(centroids_);
    result.assignments = std::move(assignments_);
    for (std::int64_t cluster = 0; cluster < clusters_; ++cluster) {
      result.counts.push_back(totals.count(cluster));
    }
    result.empty_moved = empty_moved_;
    result.inertia = squares_.value(totals.squares());
    return result;
  }

 private:
  std::span<double> centroid(std::int64_t cluster) {
    return std::span(centroids_).subspan(index(cluster * points_.columns), index(points_.columns));
  }

  /// Returns the centroids as [columns, clusters]: neighbours in memory then belong to different
  /// distances, which may be computed side by side without changing the order of any one's sum.
  std::vector<double> transpose() const {
    std::vector<double> transposed(centroids_.size());
    for (std::int64_t cluster = 0; cluster < clusters_; ++cluster) {
      for (std::int64_t i = 0; i < points_.columns; ++i) {
        transposed[index(i * clusters_ + cluster)] =
            centroids_[index(cluster * points_.columns + i)];
      }
    }
    return transposed;
  }

  static void distances_to_all(std::span<const double> point, const std::vector<double>& transposed,
                               std::vector<double>& sums) {
    std::fill(sums.begin(), sums.end(), 0.0);
    const double* coordinates = transposed.data();
    for (const double value : point) {
      for (std::size_t cluster = 0; cluster < sums.size(); ++cluster) {
        const double difference = value - coordinates[cluster];
        sums[cluster] += difference * difference;
      }
      coordinates += sums.size();
    }
  }

  /// Returns the points of all ranks that are farthest from their centroids, farthest first, of
  /// equals the first row; at most `count` of them, and none that lies on its centroid.
  std::vector<std::int64_t> farthest_rows(std::size_t count) const {
    std::vector<std::pair<double, double>> candidates;  // minus the distance, and the row
    for (std::int64_t local = 0; local < points_.own(); ++local) {
      candidates.emplace_back(-distances_[index(local)], points_.row(local));
    }
    candidates.resize(std::max(candidates.size(), count));  // those added have a distance of 0
    std::nth_element(candidates.begin(), candidates.begin() + std::ptrdiff_t(count - 1),
                     candidates.end());
    std::vector<double> mine;
    for (std::size_t i = 0; i < count; ++i) {
      mine.insert(mine.end(), {candidates[i].first, candidates[i].second});
    }
    const std::vector<double> all = allgather(mine, mine.size() * index(points_.part.ranks),
                                              "farthest " + std::to_string(count) + " points");
    candidates.clear();
    for (std::size_t i = 0; i < all.size(); i += 2) candidates.emplace_back(all[i], all[i + 1]);
    std::sort(candidates.begin(), candidates.end());
    std::vector<std::int64_t> rows;
    for (std::size_t i = 0; i < count && candidates[i].first < 0; ++i) {
      rows.push_back(static_cast<std::int64_t>(candidates[i].second));
    }
    return rows;
  }

  void move_to_farthest(const std::vector<std::int64_t>& empty) {
    const std::vector<std::int64_t> rows = farthest_rows(empty.size());
    empty_moved_ += static_cast<std::int64_t>(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::vector<double> point = fetch_point(points_, rows[i]);
      std::copy(point.begin(), point.end(), centroid(empty[i]).begin());
    }
  }

  const Points& points_;
  std::int64_t clusters_;
  SquareSum squares_;
  std::vector<double> centroids_;
  std::vector<std::int32_t> assignments_;
  std::int64_t empty_moved_ = 0;
  std::vector<double> distances_;  ///< squared, to the assigned centroid
};

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

Clustering cluster(const Points& points, std::vector<double> centroids, std::int64_t limit) {
  Lloyd lloyd(points, std::move(centroids));
  for (std::int64_t iterations = 0;; ++iterations) {
    Totals totals = lloyd.add_up(lloyd.assign());
    allreduce_sum(totals.all(), "totals");
    if (totals.changed() > 0 && iterations < limit) {
      lloyd.move_centroids(totals);
      continue;
    }
    Clustering result = std::move(lloyd).result(totals);
    result.iterations = iterations;
    result.converged = totals.changed() == 0;
    result.allreduces = iterations + 1;
    result.allreduce_bytes = static_cast<std::int64_t>(totals.all().size_bytes());
    return result;
  }
}

}  // namespace kmeans
