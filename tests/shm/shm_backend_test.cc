// SPDX-License-Identifier: Apache-2.0
// The backend as Ronde makes it: over really shared memory, and below a Runtime.
#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "backends/shm/shm.h"
#include "file_limit.h"
#include "group.h"
#include "ronde/error.h"
#include "ronde/runtime.h"

namespace ronde::test {
namespace {

TEST_CASE("the factory suits the ranks of one host, before any other") {
  const BackendFactory factory = shm_backend_factory();
  CHECK(factory.device == DeviceKind::Cpu);
  CHECK(factory.priority > 10);
  CHECK(factory.suits(make_topology(0, {0, 0})));
  CHECK(factory.suits(make_topology(0, {0})));
  CHECK_FALSE(factory.suits(make_topology(0, {0, 1})));
  CHECK_FALSE(factory.suits(make_topology(0, {0, 0, 1})));
}

TEST_CASE("ranks reduce through memory that is really shared, and count it") {
  run_contexts({0, 0, 0}, [](int rank, const BackendContext& context) {
    BackendContext counting = context;
    int rings = 0;
    counting.ring_peers = [&] { ++rings; };
    const auto backend = shm_backend_factory({.slot_bytes = 64 << 10}).create(counting);
    check(backend->name() == "shm", "its name");
    check(backend->capabilities().rings_peers, "it rings");
    std::vector<float> values(100'000, static_cast<float>(rank));
    const Segment segment{values.data(), values.data(), values.size()};
    finish(*backend->allreduce({.segments = {&segment, 1}, .op = ReduceOp::Average}));
    check(values.front() == 1.0F && values.back() == 1.0F, "the average of 0, 1 and 2");
    check(rings > 0, "peers were told");
    check(backend->stats().part == "shm", "the name of its statistics");
    check(counter_of(*backend, "operations") == 1, "one operation");
    check(counter_of(*backend, "rounds") >= 4, "of several rounds");
    check(counter_of(*backend, "staged_bytes") >= 400'000 * 2 / 3 - 1000, "by the ring");
    check(counter_of(*backend, "ring_bytes") < (std::uint64_t{64} << 20), "which is small");
    backend->close();
  });
}

TEST_CASE("a heap beyond the limit on files is done without, with a warning") {
  const FileLimit limit(rlim_t{8} << 20);
  run_contexts({0, 0}, [](int, const BackendContext& context) {
    BackendContext warned = context;
    std::string warning;
    warned.warn = [&](const std::string& text) { warning += text; };
    warned.symmetric_heap_bytes = std::uint64_t{1} << 30;
    const auto backend = shm_backend_factory().create(warned);
    check(backend->symmetric_heap() == nullptr, "there is no heap");
    check_contains(warning, "(ulimit -f)");
    check_contains(warning, "RONDE_SYMMETRIC_HEAP_BYTES");
    warned.symmetric_heap_bytes = std::uint64_t{1} << 20;
    check(shm_backend_factory().create(warned)->symmetric_heap() != nullptr, "a small one");
  });
}

TEST_CASE("a ring that cannot be shared is an error on every rank") {
  const FileLimit limit(4096);
  run_contexts({0, 0, 0}, [](int, const BackendContext& context) {
    BackendContext without_heap = context;
    without_heap.symmetric_heap_bytes = 0;
    const Death death = death_of([&] { shm_backend_factory().create(without_heap); });
    check(death.rank == 0, "who could not");
    check_contains(death.text, "RONDE_CPU_BACKEND=mpi does without");
  });
}

TEST_CASE("a rank that is lost while memory is shared is not passed over") {
  for (int lost_in = 1;; ++lost_in) {
    std::atomic<int> made = 0;
    run_contexts({0, 0}, [&](int, const BackendContext& context) {
      BackendContext losing = context;
      losing.symmetric_heap_bytes = std::uint64_t{1} << 20;
      int exchanges = 0;
      losing.exchange = [&](std::string_view blob) {
        if (++exchanges == lost_in) throw GroupError(1, "rank 1 was lost");
        return context.exchange(blob);
      };
      try {
        shm_backend_factory().create(losing);
        ++made;
      } catch (const GroupError& error) {
        check(std::string(error.what()) == "rank 1 was lost", error.what());
      }
    });
    if (made > 0) {
      CHECK(made == 2);
      CHECK(lost_in > 6);  // both memories take several exchanges
      break;
    }
  }
}

TEST_CASE("the ring takes less than 64 MiB, and its slots are larger where ranks share cores") {
  for (const std::size_t cores : {1U, 64U}) {
    for (std::size_t ranks = 1; ranks <= 64; ++ranks) {
      CHECK(shm::ring_shape({}, ranks, cores).bytes() < std::size_t{64} << 20);
    }
  }
  CHECK(shm::ring_shape({}, 4, 2).slot_bytes > shm::ring_shape({}, 4, 4).slot_bytes);
  CHECK(shm::ring_shape({.slot_bytes = 192}, 4, 2).slot_bytes == 192);
}

TEST_CASE("an operation that a dead peer left unfinished can be dropped") {
  run_contexts({0, 0}, [](int rank, const BackendContext& context) {
    auto backend = shm_backend_factory().create(const_cast<BackendContext&>(context));
    if (rank == 1) return;  // never takes part
    std::vector<double> values(300'000, 1.0);
    const Segment segment{values.data(), values.data(), values.size()};
    auto operation = backend->allreduce({.segments = {&segment, 1}, .dtype = DataType::F64});
    for (int i = 0; i < 1000; ++i) check(!operation->poll(), "it waits for the other rank");
    backend->abort();
    values = {};
    backend.reset();
    operation.reset();
  });
}

TEST_CASE("a wrong ring is refused") {
  for (const ShmOptions& options : std::vector<ShmOptions>{
           {.slots = 0}, {.slots = 17}, {.slot_bytes = 8}, {.slot_bytes = 100}}) {
    CHECK_THROWS_AS(run_backends(2, options, [](int, shm::ShmBackend&) {}), Error);
  }
}

}  // namespace
}  // namespace ronde::test
