// SPDX-License-Identifier: Apache-2.0
// Runtimes of ranks that no launcher started: threads that meet through a store in memory.
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "backends/compose.h"
#include "tests/support/memory_store.h"
#include "tests/support/ranks.h"
#include "tests/support/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;

RuntimeOptions options_of(const KeyValueStart& start, const Config& config = test_config()) {
  BuiltIn built_in = compose_without_launcher(config, start);
  RuntimeOptions options;
  options.config = config;
  options.make_transport = std::move(built_in.make_transport);
  options.make_board = std::move(built_in.make_board);
  options.backends = std::move(built_in.backends);
  return options;
}

/// The sum over the ranks of many numbers, rank * 1000 + i on each rank.
void check_allreduce(Runtime& runtime, std::size_t count) {
  const int size = runtime.topology().size;
  std::vector<double> values(count);
  std::iota(values.begin(), values.end(), 1000.0 * runtime.topology().rank);
  Request request;
  request.name = "sum of " + std::to_string(count);
  request.dtype = DataType::F64;
  request.shape = {static_cast<std::int64_t>(count)};
  request.input = request.output = values.data();
  runtime.run(std::move(request));
  for (std::size_t i = 0; i < count; ++i) {
    const double expected = 500.0 * size * (size - 1) + static_cast<double>(i) * size;
    check(values[i] == expected, "element " + std::to_string(i) + " is the sum");
  }
}

/// Every collective but the barrier once, with a number from each rank.
void check_others(Runtime& runtime) {
  const Topology& topology = runtime.topology();
  const auto size = static_cast<std::size_t>(topology.size);
  std::vector<float> mine(size, static_cast<float>(topology.rank));
  const auto run = [&](Collective kind, std::vector<float>& output, std::int64_t count) {
    Request request;
    request.kind = kind;
    request.name = std::string(to_string(kind));
    request.shape = {count};
    request.root = topology.size - 1;
    request.input = mine.data();
    request.output = output.data();
    runtime.run(std::move(request));
  };
  std::vector<float> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0.0F);
  std::vector<float> result(size);
  run(Collective::Allgather, result, 1);
  check(result == ranks, "allgather");
  run(Collective::Alltoall, result, topology.size);
  check(result == ranks, "alltoall");
  run(Collective::Reducescatter, result, topology.size);
  check(result[0] == std::accumulate(ranks.begin(), ranks.end(), 0.0F), "reducescatter");
  run(Collective::Broadcast, result, topology.size);
  check(result == std::vector<float>(size, ranks.back()), "broadcast");
}

}  // namespace

TEST_CASE("one to four ranks without a launcher compute over shared memory") {
  for (int size = 1; size <= 4; ++size) {
    INFO(size << " ranks");
    MemoryStore store;
    run_ranks(size, [&](int rank) {
      KeyValueStart start = store.start(rank, size);
      start.local_rank = rank;
      Runtime runtime(options_of(start));
      check(runtime.topology().rank == rank, "rank");
      check(runtime.topology().size == size, "size");
      check(runtime.topology().local_rank == rank, "local rank");
      check(runtime.topology().hosts() == 1, "one host");
      check(runtime.transport_name() == "key-value", "transport");
      check(runtime.backend_name(DeviceKind::Cpu) == "shm", "backend");
      for (const std::size_t count : {1, 100, 100'000}) {
        for (int repeat = 0; repeat < 4; ++repeat) check_allreduce(runtime, count);
      }
      check_others(runtime);
      runtime.shutdown();
    });
  }
}

TEST_CASE("a group can start again in the same processes, under another prefix") {
  MemoryStore store;
  run_ranks(2, [&](int rank) {
    for (int generation = 0; generation < 3; ++generation) {
      KeyValueStart start = store.start(rank, 2);
      start.prefix = "generation " + std::to_string(generation);
      Runtime runtime(options_of(start));
      check_allreduce(runtime, 10);
      runtime.shutdown();
    }
  });
}

TEST_CASE("a start that cannot work is a UsageError on every rank") {
  struct Case {
    const char* name;
    std::function<void(int rank, KeyValueStart& start, Config& config)> change;
    std::string text;
  };
  for (const Case& one :
       {Case{"hosts",
             [](int rank, KeyValueStart&, Config&config) {
               config.host_id = rank == 2 ? "east" : "west";
             },
             "rank 0 and rank 2 are on different hosts (west and east): without MPI, tensors"},
        Case{"local rank", [](int, KeyValueStart&start, Config&) { start.local_rank = 1; },
             "rank 0 was started with local rank 1, but 0 ranks of its host come before it"},
        Case{"configuration",
             [](int rank, KeyValueStart&, Config&config) {
               config.fusion_bytes = rank == 1 ? 1024 : 2048;
             },
             "RONDE_FUSION_BYTES"}}) {
    INFO(one.name);
    MemoryStore store;
    run_ranks(3, [&](int rank) {
      KeyValueStart start = store.start(rank, 3);
      Config config = test_config();
      one.change(rank, start, config);
      check_contains(text_of<UsageError>([&] { const Runtime runtime(options_of(start, config)); }),
                     one.text);
    });
  }
}

TEST_CASE("a rank that never comes is a GroupError that names it") {
  MemoryStore store;
  Config config = test_config();
  config.init_timeout_s = 0.3;
  const Death death =
      death_of([&] { const Runtime runtime(options_of(store.start(0, 2), config)); });
  CHECK(death.rank == 1);
  CHECK_THAT(death.text, Contains(" s for rank(s) 1 of 2 to appear in the key-value store"));
}
