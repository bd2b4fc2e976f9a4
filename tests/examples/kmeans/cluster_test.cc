// SPDX-License-Identifier: Apache-2.0
// Lloyd's iteration from any start, on every number of ranks, against a plain one.
#include "cluster.h"

#include <ronde/ronde.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/examples/kmeans/oracle.h"

namespace kmeans {
namespace {

using example::Part;
using example::Table;
using testing::Expected;
using testing::flatten;
using testing::Rows;
using testing::whole_numbers;

Points share_of(const Rows& points, const Part& part) {
  Table table;
  table.rows = static_cast<std::int64_t>(points.size());
  table.columns = static_cast<std::int64_t>(points.front().size());
  for (std::int64_t local = 0; local < part.count(table.rows); ++local) {
    const auto& point = points[static_cast<std::size_t>(part.rank + local * part.ranks)];
    table.values.insert(table.values.end(), point.begin(), point.end());
  }
  return make_points(std::move(table), part);
}

void check_same(const Clustering& result, const Expected& expected, const Part& part,
                double quanta) {
  CHECK(result.centroids == flatten(expected.centroids, quanta));
  CHECK(result.iterations == expected.iterations);
  CHECK(result.converged == expected.converged);
  CHECK(result.empty_moved == expected.empty_moved);
  CHECK(result.inertia / quanta / quanta == Approx(expected.inertia).epsilon(1e-12));
  std::vector<std::int64_t> counts(expected.centroids.size());
  std::vector<std::int32_t> own;
  for (std::size_t row = 0; row < expected.assignments.size(); ++row) {
    ++counts[static_cast<std::size_t>(expected.assignments[row])];
    if (static_cast<int>(row) % part.ranks == part.rank) own.push_back(expected.assignments[row]);
  }
  CHECK(result.counts == counts);
  CHECK(result.assignments == own);
}

}  // namespace

TEST_CASE("from any start all ranks end where a plain k-means does, empty clusters included") {
  struct Case {
    const char* name;
    Rows points;
    Rows start;
    bool moves_empty = true;
  };
  const Case cases[] = {
      {"all far away but one",
       whole_numbers(53, 3, 20, 1),
       {{5, 5, 5}, {900, 0, 0}, {0, 900, 0}, {0, 0, 900}}},
      {"all at one place", whole_numbers(53, 3, 20, 1), {{5, 5, 5}, {5, 5, 5}, {5, 5, 5}}},
      {"the farthest points are equal",
       {{0}, {0}, {0}, {9}, {9}, {9}, {1}},
       {{0}, {99}, {99}, {99}}},
      {"more clusters than places", {{0}, {4}, {4}, {0}, {4}}, {{0}, {99}, {99}}},
      {"every point at one place", {{3}, {3}, {3}, {3}}, {{3}, {3}}, false},
      {"many empty at once, few points a rank",
       whole_numbers(6, 2, 9, 2),
       {{0, 0}, {99, 0}, {99, 0}, {99, 0}, {99, 0}}},
  };
  ronde::init();
  const Part part{ronde::rank(), ronde::size()};
  for (const Case& one : cases) {
    INFO(one.name);
    const Points points = share_of(one.points, part);
    const double quanta = std::ldexp(1.0, points.fraction_bits);
    const Clustering result = cluster(points, flatten(one.start, quanta), 300);
    const Expected expected = testing::plain_kmeans(one.points, one.start, 300);
    CHECK(expected.converged);
    CHECK((expected.empty_moved > 0) == one.moves_empty);
    check_same(result, expected, part, quanta);
  }
  ronde::shutdown();
}

}  // namespace kmeans
