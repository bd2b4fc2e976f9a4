// SPDX-License-Identifier: Apache-2.0
// The program on the handwritten digits that scripts/deps.sh fetches.
#include <catch2/catch.hpp>

#include "common/data/digits_path.h"
#include "common/data/table.h"
#include "tests/examples/kmeans/run.h"
#include "tests/support/processes/temporary_folder.h"

namespace kmeans::testing {

TEST_CASE("the digits end on one to four ranks bit for bit where a plain k-means does") {
  const ronde::test::TemporaryFolder folder;
  const Result result = cluster_on_one_to_four(folder.path(), {});
  const example::Table table =
      example::read_table(example::digits_path(), {.header = false, .labels = true}, {});
  REQUIRE(table.rows == 1797);
  REQUIRE(table.columns == 64);
  Rows points;
  for (auto row = table.values.begin(); row != table.values.end(); row += 64) {
    points.emplace_back(row, row + 64);
  }
  const Expected expected = plain_kmeans(points, rows_at(points, result.start_rows()), 300);
  CHECK(expected.converged);
  check_same(result, expected);
  CHECK(result.centroids == flatten(expected.centroids));
  CHECK(result.report["inertia"].get<double>() == Approx(expected.inertia).epsilon(1e-12));
  // Ten clusters that knew nothing of the digits would have a purity near 0.1.
  CHECK(result.report["purity"].get<double>() > 0.7);
  CHECK_FALSE(result.picture.empty());
}

}  // namespace kmeans::testing
