// SPDX-License-Identifier: Apache-2.0
#include "backends/hierarchical/hierarchical.h"

#include <catch2/catch.hpp>
#include <optional>
#include <set>
#include <vector>

#include "backends/hierarchical/hierarchical_allreduce.h"

namespace ronde::hierarchical {
namespace {

TEST_CASE("the hierarchical backend suits several hosts, one of which has several ranks") {
  const BackendFactory factory = hierarchical_backend_factory(nullptr, {});
  CHECK(factory.suits(make_topology(0, {0, 0, 1, 1})));
  CHECK(factory.suits(make_topology(2, {0, 1, 1})));
  CHECK_FALSE(factory.suits(make_topology(0, {0, 0, 0})));
  CHECK_FALSE(factory.suits(make_topology(1, {0, 1, 2})));
  CHECK_FALSE(factory.suits(make_topology(0, {0})));
  CHECK(factory.priority > fabric_backend_factory(nullptr, {}).priority);
}

TEST_CASE("there are as many shards as the smallest host has ranks") {
  const std::vector<int> hosts = {0, 1, 0, 1, 0};
  const std::vector<std::vector<int>> owners = {{0, 1}, {2, 3}};
  for (int rank = 0; rank < 5; ++rank) {
    CAPTURE(rank);
    const Topology topology = make_topology(rank, hosts);
    const Shards shards = shards_of(topology);
    CHECK(shards.hosts == 2);
    CHECK(shards.own_host == static_cast<std::size_t>(rank % 2));
    CHECK(shards.count == 2);
    const auto local = static_cast<std::size_t>(topology.local_rank);
    CHECK(shards.own == (local < 2 ? std::optional(local) : std::nullopt));
    CHECK(shards.owners == (local < 2 ? owners[local] : std::vector<int>()));
  }
}

TEST_CASE("slots of the slot buffer are as large on every host") {
  const std::vector<int> hosts = {0, 0, 0, 0, 1};
  const shm::SlotBufferShape of_large = slot_buffer_shape(make_topology(0, hosts));
  const shm::SlotBufferShape of_small = slot_buffer_shape(make_topology(4, hosts));
  CHECK(of_large.ranks == 4);
  CHECK(of_small.ranks == 1);
  CHECK(of_large.slot_bytes == of_small.slot_bytes);
  const shm::SlotBufferShape of_many = slot_buffer_shape(make_topology(0, std::vector<int>(64, 0)));
  CHECK(of_many.bytes() <= std::size_t{257} << 20);
  CHECK(of_many.slot_bytes % 64 == 0);
}

TEST_CASE("a round has as many shards as have messages of 64 KiB") {
  const Topology topology = make_topology(0, {0, 0, 0, 0, 1, 1, 1, 1});
  const Shards shards = shards_of(topology, 64 << 10);
  std::set<std::size_t> owners;
  const auto used = [&](std::size_t bytes, std::uint64_t round = 0) {
    std::size_t count = 0;
    std::size_t covered = 0;
    for (std::size_t owner = 0; owner < shards.count; ++owner) {
      const shm::Slice slice = shards.shard(owner, {round, bytes / 4}, 4);
      if (slice.count() > 0) owners.insert(owner);
      covered += slice.count() * 4;
      count += slice.count() > 0 ? 1 : 0;
    }
    CHECK(covered == bytes);
    return count;
  };
  CHECK(used(4) == 1);
  CHECK(used(128 << 10) == 1);
  CHECK(used((256 << 10) - 4) == 1);
  CHECK(used(256 << 10) == 2);
  CHECK(used(1 << 20) == 4);
  // All owners take turns.
  owners.clear();
  for (std::uint64_t round = 0; round < 4; ++round) CHECK(used(4, round) == 1);
  CHECK(owners.size() == 4);
}

}  // namespace
}  // namespace ronde::hierarchical
