// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/set_info.h"

#include <catch2/catch.hpp>

#include "core/src/base/rank_list.h"
#include "ronde/error.h"

using namespace ronde;
using Catch::Matchers::Contains;

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

TEST_CASE("ranks of a set must exist, and once") {
  CHECK_FALSE(set_error({2, 0}, 3));
  CHECK_THAT(set_error({}, 3).value(), Contains("at least one rank"));
  CHECK_THAT(set_error({0, 3}, 3).value(),
             Contains("rank 3 of the process set of ranks 0,3 does not exist"));
  CHECK_THAT(set_error({-1, 0}, 3).value(), Contains("rank -1"));
  CHECK_THAT(set_error({1, 2, 1}, 3).value(), Contains("rank 1 comes twice"));
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

TEST_CASE("a table of sets knows what was inserted and not erased") {
  SetTable table;
  const Topology group = make_topology(0, {0, 0});
  table.insert(std::make_shared<SetInfo>(make_set_info(0, {0, 1}, true, group)));
  table.insert(std::make_shared<SetInfo>(make_set_info(3, {1}, true, group)));
  CHECK(table.sets() == std::vector<ProcessSet>{{0}, {3}});
  CHECK(table.at({3})->ranks == std::vector<int>{1});
  table.erase(3);
  CHECK_THROWS_WITH(table.at({3}), Contains("process set 3 does not exist here"));
}
