// SPDX-License-Identifier: Apache-2.0
#include "ronde/topology.h"

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
    const Topology topology = make_topology(rank, hosts);
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

TEST_CASE("a rank outside the group has no topology") {
  CHECK_THROWS_AS(make_topology(2, {0, 0}), ronde::UsageError);
  CHECK_THROWS_AS(make_topology(-1, {0, 0}), ronde::UsageError);
  CHECK_THROWS_AS(make_topology(0, {}), ronde::UsageError);
}

}  // namespace
