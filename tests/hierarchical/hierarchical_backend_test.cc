// SPDX-License-Identifier: Apache-2.0
#include "backends/hierarchical/hierarchical_backend.h"

#include <catch2/catch.hpp>
#include <vector>

#include "backends/hierarchical/mpi_wire.h"
#include "ronde/error.h"
#include "tests/support/fakes/fake_mpi.h"

namespace ronde::hierarchical {
namespace {

using Catch::Contains;
using mpi::testing::FakeMpi;

TEST_CASE("the hierarchical backend suits several hosts, one of which has several ranks") {
  const BackendFactory factory = hierarchical_backend_factory({});
  CHECK(factory.suits(make_topology(0, {0, 0, 1, 1})));
  CHECK(factory.suits(make_topology(2, {0, 1, 1})));
  CHECK_FALSE(factory.suits(make_topology(0, {0, 0, 0})));
  CHECK_FALSE(factory.suits(make_topology(1, {0, 1, 2})));
  CHECK_FALSE(factory.suits(make_topology(0, {0})));
  CHECK(factory.priority > mpi_backend_factory({}).priority);
}

TEST_CASE("there are as many shards as the smallest host has ranks") {
  const std::vector<int> hosts = {0, 1, 0, 1, 0};
  const std::vector<std::vector<int>> owners = {{0, 1}, {2, 3}};
  for (int rank = 0; rank < 5; ++rank) {
    CAPTURE(rank);
    const Topology topology = make_topology(rank, hosts);
    const Shards shards = shards_of(topology);
    CHECK(shards.ranks == 5);
    CHECK(shards.hosts == 2);
    CHECK(shards.own_host == static_cast<std::size_t>(rank % 2));
    CHECK(shards.count == 2);
    const auto local = static_cast<std::size_t>(topology.local_rank);
    CHECK(shards.own == (local < 2 ? std::optional(local) : std::nullopt));
    CHECK(shards.owners == (local < 2 ? owners[local] : std::vector<int>()));
  }
}

TEST_CASE("the parts of all hosts make up a shard, and all shards a round") {
  for (const std::size_t elements : {0U, 1U, 15U, 16U, 17U, 1000U, 4096U}) {
    std::size_t covered = 0;
    for (int rank = 0; rank < 2; ++rank) {
      const Shards shards = shards_of(make_topology(rank, {0, 0, 1, 1, 2, 2}));
      for (std::size_t host = 0; host < 3; ++host) {
        const shm::Slice part = shards.part(host, elements, sizeof(float));
        CAPTURE(elements, rank, host);
        CHECK(part.begin == covered);
        CHECK(part.end >= part.begin);
        covered = part.end;
      }
    }
    CHECK(covered == elements);
  }
}

TEST_CASE("slots of the slot buffer are as large on every host") {
  const std::vector<int> hosts = {0, 0, 0, 0, 1};
  const shm::SlotBufferShape of_large = slot_buffer_shape({}, make_topology(0, hosts));
  const shm::SlotBufferShape of_small = slot_buffer_shape({}, make_topology(4, hosts));
  CHECK(of_large.ranks == 4);
  CHECK(of_small.ranks == 1);
  CHECK(of_large.slot_bytes == of_small.slot_bytes);
  const shm::SlotBufferShape of_many =
      slot_buffer_shape({}, make_topology(0, std::vector<int>(64, 0)));
  CHECK(of_many.bytes() <= std::size_t{64} << 20);
  CHECK(of_many.slot_bytes % 64 == 0);
}

TEST_CASE("a batch of MPI messages ends as a whole") {
  FakeMpi fake;
  MpiWire wire(fake.environment(), MPI_COMM_SELF, {4, 7}, 2);
  std::vector<std::byte> memory(64);
  wire.receive(1, 0, Wire::Kind::Result, memory.data(), 64);
  wire.send(1, 1, Wire::Kind::Partial, memory.data(), 32);
  REQUIRE(fake.started.size() == 2);
  CHECK(fake.started[0].name == "irecv");
  CHECK(fake.started[0].root == 4);
  CHECK(fake.started[0].count == 64);
  CHECK(fake.started[1].name == "isend");
  CHECK(fake.started[1].root == 7);
  CHECK(fake.started[1].count == 32);
  CHECK(wire.done(0));
  fake.requests_finish = false;
  CHECK_FALSE(wire.done(1));
  fake.requests_finish = true;
  CHECK(wire.done(1));
  CHECK(fake.calls["test"] == 3);
  CHECK(wire.done(1));
  CHECK(fake.calls["test"] == 3);
}

TEST_CASE("a message that MPI fails is an error with MPI's own words") {
  std::vector<std::byte> memory(8);
  for (const std::string call : {"isend", "irecv", "test"}) {
    CAPTURE(call);
    FakeMpi fake;
    fake.initialized = true;
    fake.codes[call] = 15;
    MpiWire wire(fake.environment(), MPI_COMM_SELF, {0, 1}, 1);
    const auto exchange = [&] {
      wire.send(0, 1, Wire::Kind::Partial, memory.data(), 8);
      wire.receive(0, 1, Wire::Kind::Partial, memory.data(), 8);
      wire.done(0);
    };
    CHECK_THROWS_WITH(exchange(), Contains("rank 0") && Contains("native text of 15"));
  }
}

}  // namespace
}  // namespace ronde::hierarchical
