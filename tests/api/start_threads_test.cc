// SPDX-License-Identifier: Apache-2.0
// Runtimes of ranks that no launcher started: threads that meet through a store in memory.
#include <catch2/catch.hpp>

#include "ronde/ronde.h"
#include "tests/support/fakes/memory_store.h"
#include "tests/support/oracle/forms.h"
#include "tests/support/ranks/built_in.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;

/// Every collective but the barrier, against the oracle, `repeats` times.
void check_collectives(Runtime& runtime, std::size_t width, int repeats) {
  const Place place = {kGlobalSet, runtime.ranks_of(kGlobalSet), runtime.topology().rank};
  for (const Collective kind : {Collective::Allreduce, Collective::Allgather, Collective::Alltoall,
                                Collective::Reducescatter, Collective::Broadcast}) {
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const std::string wrong =
          run_row({.kind = kind, .dtype = DataType::F64, .width = width}, runtime, place);
      check(wrong.empty(), std::string(to_string(kind)) + ": " + wrong);
    }
  }
}

}  // namespace

TEST_CASE("one to four ranks without a launcher compute over shared memory") {
  for (int size = 1; size <= 4; ++size) {
    INFO(size << " ranks");
    MemoryStore store;
    run_ranks(size, [&](int rank) {
      KeyValueStart start = store.start(rank, size);
      start.local_rank = rank;
      Runtime runtime(options_without_launcher(start));
      check(runtime.topology().rank == rank, "rank");
      check(runtime.topology().size == size, "size");
      check(runtime.topology().local_rank == rank, "local rank");
      check(runtime.topology().hosts() == 1, "one host");
      check(runtime.transport_name() == "key-value", "transport");
      check(runtime.backend_name(DeviceKind::Cpu) == "shm", "backend");
      for (const std::size_t width : {1, 37, 30'000}) check_collectives(runtime, width, 4);
      runtime.shutdown();
    });
  }
}

TEST_CASE("ranks of two hosts meet through a store, and UCX moves their data") {
  MemoryStore store;
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.host_id = rank == 2 ? "east" : "west";
    RuntimeOptions options = options_without_launcher(store.start(rank, 3), config);
    if (!has_feature("ucx")) {
      const auto start = [&] { Runtime(std::move(options)); };
      return check_contains(text_of<UsageError>(start), "(west and east): without MPI or UCX");
    }
    Runtime runtime(std::move(options));
    check(runtime.topology().hosts() == 2, "two hosts");
    check(runtime.backend_name(DeviceKind::Cpu) == "hierarchical", "backend");
    for (const std::size_t width : {1, 37, 30'000}) check_collectives(runtime, width, 3);
    runtime.shutdown();
  });
}

TEST_CASE("a rank that never comes is a GroupError that names it") {
  MemoryStore store;
  Config config = test_config();
  config.init_timeout_s = 0.3;
  const Death death =
      death_of([&] { const Runtime runtime(options_without_launcher(store.start(0, 2), config)); });
  CHECK(death.rank == 1);
  CHECK_THAT(death.text, Contains(" s for rank(s) 1 of 2 to appear in the key-value store"));
}
