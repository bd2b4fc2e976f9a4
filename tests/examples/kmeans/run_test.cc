// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it, on points made for the test, against a plain k-means.
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "tests/examples/kmeans/run.h"
#include "tests/support/processes/temporary_folder.h"

namespace kmeans::testing {
namespace {

using Catch::Contains;
using ronde::test::TemporaryFolder;
using ronde::test::write_bytes;

/// Around `centers` random places, in units of `scale`.
Rows clouds(std::size_t rows, std::size_t columns, std::size_t centers, double scale,
            unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Rows middle(centers, std::vector<double>(columns));
  for (auto& place : middle) {
    for (double& value : place) value = 4 * normal(random);
  }
  Rows points;
  for (std::size_t i = 0; i < rows; ++i) {
    points.push_back(middle[i % centers]);
    for (double& value : points.back()) value = scale * (value + normal(random));
  }
  return points;
}

}  // namespace

TEST_CASE("whole numbers end on one to four ranks bit for bit where a plain k-means does") {
  struct Case {
    Rows points;
    int clusters;
    int iterations;
  };
  const TemporaryFolder folder;
  // The last has 41 points at 4 places: three clusters stay empty.
  for (const Case& one :
       {Case{whole_numbers(203, 5, 16, 1), 7, 300}, Case{whole_numbers(203, 5, 16, 2), 7, 3},
        Case{whole_numbers(64, 1, 1000000, 3), 1, 300}, Case{whole_numbers(5, 3, 100, 4), 5, 300},
        Case{whole_numbers(41, 2, 2, 5), 7, 300}}) {
    INFO(one.points.size() << " points, " << one.clusters << " clusters");
    write_bytes(folder / "points.csv", to_csv(one.points));
    const Result result =
        cluster_on_one_to_four(folder.path(), {"--data", (folder / "points.csv").string(),
                                               "--clusters", std::to_string(one.clusters),
                                               "--iterations", std::to_string(one.iterations)});
    const Expected expected =
        plain_kmeans(one.points, rows_at(one.points, result.start_rows()), one.iterations);
    check_same(result, expected);
    CHECK(result.centroids == flatten(expected.centroids));
    CHECK(result.report["inertia"].get<double>() == Approx(expected.inertia).epsilon(1e-12));
  }
}

TEST_CASE("real numbers of any size end where a plain k-means does, within rounding") {
  const TemporaryFolder folder;
  for (const double scale : {1.0, 1e-200, 1e150}) {
    INFO("scale " << scale);
    // The plain one takes units of `scale`, where it neither overflows nor underflows.
    Rows points = clouds(300, 3, 6, scale, 7);
    write_bytes(folder / "points.csv", to_csv(points));
    const Result result = cluster_on_one_to_four(
        folder.path(), {"--data", (folder / "points.csv").string(), "--clusters", "6"});
    for (auto& point : points) {
      for (double& value : point) value /= scale;
    }
    const Expected expected = plain_kmeans(points, rows_at(points, result.start_rows()), 300);
    CHECK(expected.converged);
    check_same(result, expected);
    const std::vector<double> centroids = flatten(expected.centroids);
    REQUIRE(result.centroids.size() == centroids.size());
    for (std::size_t i = 0; i < centroids.size(); ++i) {
      CHECK(result.centroids[i] / scale == Approx(centroids[i]).epsilon(0).margin(1e-12));
    }
  }
}

TEST_CASE("the start depends on the seed, and is made of distinct points where it can be") {
  const TemporaryFolder folder;
  write_bytes(folder / "points.csv", to_csv(clouds(100, 2, 5, 1.0, 3)));
  const auto start = [&](const char* seed) {
    return cluster(folder.path(), 2,
                   {"--data", (folder / "points.csv").string(), "--clusters", "5", "--seed", seed})
        .start_rows();
  };
  const std::vector<std::int64_t> one = start("1");
  CHECK(one == start("1"));
  CHECK(one != start("2"));
  CHECK(std::set<std::int64_t>(one.begin(), one.end()).size() == 5);
}

TEST_CASE("labels give a purity, a square point a picture, and a header is left out") {
  const TemporaryFolder folder;
  write_bytes(folder / "points.csv",
              "a,b,c,d,kind\n0,0,0,1,low\n0,1,0,0,low\n9,9,9,8,high\n8,9,9,9,high\n0,0,1,0,high\n");
  const Result result =
      cluster_on_one_to_four(folder.path(), {"--data", (folder / "points.csv").string(), "--labels",
                                             "--header", "--clusters", "2", "--seed", "3"});
  CHECK(result.report["points"] == 5);
  CHECK(result.report["columns"] == 4);
  CHECK(result.report["purity"].get<double>() == Approx(0.8));
  CHECK_THAT(result.text, Contains("low, 66.7 %") && Contains("high, 100.0 %"));
  CHECK_FALSE(result.picture.empty());

  write_bytes(folder / "line.csv", "1,2,3\n4,5,6\n");
  const Result line = cluster(folder.path() / "line", 1,
                              {"--data", (folder / "line.csv").string(), "--clusters", "2"});
  CHECK(line.picture.empty());
  CHECK(line.report["purity"].is_null());
  CHECK_THAT(line.text, Contains("a point of 3 values is no square image"));
}

}  // namespace kmeans::testing
