// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/mpi_fabric.h"

#include <catch2/catch.hpp>

#include "ronde/error.h"
#include "tests/support/fakes/fake_mpi.h"

namespace ronde::mpi {
namespace {

using Catch::Contains;
using testing::FakeMpi;

constexpr MessageTag kTag = {.channel = 3, .stream = 5};

MpiFabric fabric_over(FakeMpi& fake, std::size_t max_count = 1000) {
  return {fake.environment(), MPI_COMM_SELF, max_count, false};
}

TEST_CASE("a batch of MPI messages ends as a whole") {
  FakeMpi fake;
  MpiFabric fabric = fabric_over(fake);
  const auto batch = fabric.make_batch(nullptr);
  std::vector<std::byte> memory(64);
  batch->receive(4, kTag, memory.data(), 64);
  batch->send(7, kTag, memory.data(), 32);
  batch->send(7, kTag, memory.data(), 0);
  REQUIRE(fake.started.size() == 2);
  const auto& [receive, send] = std::tie(fake.started[0], fake.started[1]);
  CHECK((receive.name == "irecv" && receive.root == 4 && receive.count == 64));
  CHECK((send.name == "isend" && send.root == 7 && send.count == 32));
  CHECK(fabric.make_batch(nullptr)->poll());
  fake.requests_finish = false;
  CHECK_FALSE(batch->poll());
  CHECK(batch->ended() == 0);
  fake.requests_finish = true;
  CHECK(batch->poll());
  CHECK(batch->ended() == 2);
  CHECK(fake.calls["testsome"] == 2);
  CHECK(batch->poll());
  CHECK(fake.calls["testsome"] == 2);
  CHECK(fabric.stats().counters ==
        std::vector<std::pair<std::string, std::uint64_t>>{{"messages", 1}, {"sent_bytes", 32}});
}

TEST_CASE("a message above the largest count of MPI goes in several calls") {
  FakeMpi fake;
  MpiFabric fabric = fabric_over(fake, 100);
  CHECK(fabric.channels() == (1 << 20) / Fabric::kStreams);  // as MPI has tags for
  const auto batch = fabric.make_batch(nullptr);
  std::vector<std::byte> memory(250);
  batch->send(1, kTag, memory.data(), 250);
  REQUIRE(fake.started.size() == 3);
  CHECK(fake.started[2].data == memory.data() + 200);
  CHECK(fake.started[2].count == 50);
  CHECK(batch->poll());
}

TEST_CASE("a message that MPI fails is an error with MPI's own text") {
  std::vector<std::byte> memory(8);
  for (const std::string call : {"isend", "irecv", "testsome"}) {
    CAPTURE(call);
    FakeMpi fake;
    fake.initialized = true;
    fake.codes[call] = 15;
    MpiFabric fabric = fabric_over(fake);
    const auto batch = fabric.make_batch(nullptr);
    const auto exchange = [&] {
      batch->send(1, kTag, memory.data(), 8);
      batch->receive(1, kTag, memory.data(), 8);
      batch->poll();
    };
    CHECK_THROWS_WITH(exchange(), Contains("rank 0") && Contains("native text of 15"));
  }
}

TEST_CASE("an MPI message of another size than expected names its sender") {
  FakeMpi fake;
  fake.short_by = 3;
  MpiFabric fabric = fabric_over(fake);
  const auto batch = fabric.make_batch(nullptr);
  std::vector<std::byte> memory(8);
  batch->receive(2, kTag, memory.data(), 8);
  CHECK_THROWS_WITH(batch->poll(), "rank 2 sent a message of 5 bytes where 8 were expected");
}

TEST_CASE("MPI messages that are given up keep what they may touch") {
  FakeMpi fake;
  fake.requests_finish = false;
  MpiFabric fabric = fabric_over(fake);
  const auto memory = std::make_shared<std::vector<std::byte>>(8);
  fabric.make_batch(memory)->receive(2, kTag, memory->data(), 8);
  CHECK(memory.use_count() == 2);
  fabric.make_batch(memory);
  CHECK(memory.use_count() == 2);
}

}  // namespace
}  // namespace ronde::mpi
