// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/set_info.h"

#include <catch2/catch.hpp>

#include "core/src/base/rank_list.h"

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

TEST_CASE("a member's topology is that of the set in its own order") {
  // Ranks 0 and 2 share a host, 1 and 3 another.
  const Topology group = make_topology(2, {0, 1, 0, 1});
  const SetInfo info = make_set_info(7, {3, 2, 0}, false, group);
  CHECK(info.is_member());
  CHECK(info.topology.rank == 1);
  CHECK(info.topology.size == 3);
  CHECK(info.topology.host_of == std::vector<int>{0, 1, 1});
  CHECK(info.topology.local_rank == 0);
  CHECK(info.topology.local_size == 2);
  CHECK_FALSE(make_set_info(7, {3, 0}, false, group).is_member());
}
