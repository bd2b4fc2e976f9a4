// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <catch2/catch.hpp>

namespace kmeans {

TEST_CASE("a cluster has the label that most of its points have, the first of equals") {
  const std::vector<ClusterLabel> labels =
      label_clusters(4, {0, 0, 0, 1, 1, 3}, {2, 2, 0, 1, 0, 1}, {"a", "b", "c"});
  REQUIRE(labels.size() == 4);
  CHECK(labels[0].name == "c");
  CHECK(labels[0].points == 2);
  CHECK(labels[1].name == "a");
  CHECK(labels[1].points == 1);
  CHECK(labels[2].name.empty());
  CHECK(labels[2].points == 0);
  CHECK(labels[3].name == "b");

  Report report;
  report.points = 6;
  report.labels = labels;
  REQUIRE(report.purity());
  CHECK(*report.purity() == Approx(4.0 / 6));
  report.labels = label_clusters(4, {0, 1}, {}, {});
  CHECK_FALSE(report.purity());
}

}  // namespace kmeans
