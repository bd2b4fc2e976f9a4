// SPDX-License-Identifier: Apache-2.0
#include "ronde/topology.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

#include "ronde/error.h"

namespace {

using ronde::make_topology;
using ronde::Topology;

TEST_CASE("leaders of hosts speak with rank 0, the others with their leader") {
  // rank:                        0  1   2   3  4  5
  const std::vector<int> hosts = {8, -1, -1, 8, 7, -1};
  std::vector<int> parents;
  std::vector<std::vector<int>> children;
  std::vector<std::array<int, 4>> places;
  for (int rank = 0; rank < 6; ++rank) {
    const Topology topology =
        rank % 2 == 0 ? make_topology(rank, hosts) : make_topology(0, hosts).seen_by(rank);
    CHECK(topology.host_of == std::vector<int>{0, 1, 1, 0, 2, 1});
    CHECK(topology.leaders == std::vector<int>{0, 1, 4});
    CHECK(topology.hosts() == 3);
    parents.push_back(topology.parent());
    children.push_back(topology.children());
    places.push_back(
        {topology.local_rank, topology.local_size, topology.cross_rank, topology.cross_size});
    CHECK_FALSE(topology.is_homogeneous());
  }
  CHECK(places ==
        std::vector<std::array<int, 4>>{
            {0, 2, 0, 3}, {0, 3, 1, 3}, {1, 3, 1, 2}, {1, 2, 0, 2}, {0, 1, 2, 3}, {2, 3, 0, 1}});
  CHECK(make_topology(2, {5, 5, 6, 6}).is_homogeneous());
  CHECK(parents == std::vector<int>{-1, 0, 1, 0, 0, 1});
  CHECK(children == std::vector<std::vector<int>>{{1, 3, 4}, {2, 5}, {}, {}, {}, {}});
  CHECK(make_topology(5, hosts).host_ranks() == std::vector<int>{1, 2, 5});
  const auto towards = [&](int rank, const std::vector<int>& ranks) {
    return make_topology(rank, hosts).children_towards(ranks);
  };
  CHECK(towards(0, {0, 1, 2, 3, 4, 5}) == std::vector<int>{1, 3, 4});
  CHECK(towards(0, {5, 2}) == std::vector<int>{1});
  CHECK(towards(0, {0}).empty());
  CHECK(towards(1, {0, 1, 3, 4, 5}) == std::vector<int>{5});
  CHECK(towards(2, {0, 1, 2, 3, 4, 5}).empty());
}

TEST_CASE("leaders are below one another, as flat and as evenly as 32 below one allow") {
  struct Row {
    int hosts, below, depth;  ///< of leaders
  };
  // 1 + 32 + 32^2 = 1057; 1 + 10 + 10^2 + 10^3 = 1111 < 1250 < 1 + 11 + 11^2 + 11^3
  for (const Row& row : {Row{1, 1, 0}, Row{2, 1, 1}, Row{33, 32, 1}, Row{34, 6, 2},
                         Row{1057, 32, 2}, Row{1058, 10, 3}, Row{1250, 11, 3}}) {
    CAPTURE(row.hosts);
    std::vector<int> host_of;  // two ranks each, in turns
    for (int rank = 0; rank < 2 * row.hosts; ++rank) host_of.push_back(rank % row.hosts);
    const Topology topology = make_topology(0, host_of);
    CHECK(topology.leaders_below == row.below);
    std::vector<int> children(host_of.size());
    int deepest = 0;
    for (int rank = 1; rank < topology.size; ++rank) {
      const int parent = topology.parent_of(rank);
      REQUIRE(parent < rank);
      REQUIRE((rank < row.hosts || parent == rank - row.hosts));
      if (rank < row.hosts) deepest = std::max(deepest, topology.depth_of(rank));
      ++children[static_cast<std::size_t>(parent)];
    }
    CHECK(deepest == row.depth);
    const auto most = std::ranges::max_element(children);
    CHECK(*most == row.below + (row.hosts > 1 ? 1 : 0));
    CHECK(most == children.begin());
  }
}

TEST_CASE("a leader speaks for its host and those below, and forwards to them") {
  // Seven hosts, two of them below one; rank 7 is the second rank of host 1.
  const std::vector<int> hosts = {0, 1, 2, 3, 4, 5, 6, 1};
  const auto of = [&](int rank) { return make_topology(rank, hosts, 2); };
  CHECK(of(0).children() == std::vector<int>{1, 2});
  CHECK(of(1).children() == std::vector<int>{3, 4, 7});
  CHECK(of(7).children().empty());
  CHECK(of(0).children_towards({0, 3, 7}) == std::vector<int>{1});
  CHECK(of(1).children_towards({0, 1, 2, 4, 6, 7}) == std::vector<int>{4, 7});
  CHECK(of(5).children_towards({5, 6}).empty());
  std::vector<int> below_1;
  for (int rank = 0; rank < 8; ++rank) {
    if (of(0).is_at_or_below(rank, 1)) below_1.push_back(rank);
  }
  CHECK(below_1 == std::vector<int>{1, 3, 4, 7});
}

TEST_CASE("a rank outside the group has no topology") {
  CHECK_THROWS_AS(make_topology(2, {0, 0}), ronde::UsageError);
  CHECK_THROWS_AS(make_topology(-1, {0, 0}), ronde::UsageError);
  CHECK_THROWS_AS(make_topology(0, {}), ronde::UsageError);
}

}  // namespace
