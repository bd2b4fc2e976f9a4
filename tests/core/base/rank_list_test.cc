// SPDX-License-Identifier: Apache-2.0
#include "core/src/base/rank_list.h"

#include <catch2/catch.hpp>

using namespace ronde;

TEST_CASE("a list of ranks keeps its order in text and back, and is shown in runs") {
  CHECK(format_ranks({}) == "no rank");
  CHECK(format_ranks({4}) == "rank 4");
  CHECK(format_ranks({0, 1}) == "ranks 0,1");
  CHECK(format_ranks({0, 1, 2, 5, 7, 8, 9}) == "ranks 0-2,5,7-9");
  const std::vector<int> ranks = {4, 0, 12};
  CHECK(list_ranks(ranks) == "4,0,12");
  CHECK(ranks_in("4,0,12") == ranks);
  CHECK(ranks_in("-1").front() == -1);
  CHECK(ranks_in("").empty());
}
