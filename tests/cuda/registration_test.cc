// SPDX-License-Identifier: Apache-2.0
// Registrations that are kept: hits, misses and what ends them, by themselves and with a CUDA
// driver that is a fake.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/cuda/ipc/registration_cache.h"
#include "backends/gpu/driver/memory.h"
#include "tests/support/fakes/fake_cuda.h"

namespace {

using namespace ronde::cuda;
using Catch::Contains;
using ronde::test::FakeCuda;

std::uint64_t counter(const RegistrationCache& cache, const std::string& name) {
  for (const auto& [key, value] : cache.stats().counters) {
    if (key == name) return value;
  }
  FAIL("there is no counter " + name);
  return 0;
}

/// Allocations of the fake, shown at whatever address and of whatever size a case wants.
struct Fixture {
  FakeCuda cuda;
  std::shared_ptr<const DeviceContext> context = std::make_shared<DeviceContext>(cuda.api(), 0);
  std::vector<DeviceMemory> memories;

  ExportedMemory exported(const DeviceMemory& memory, std::size_t offset, std::size_t bytes) {
    const auto all = export_memory(*context, memory.address() + offset, bytes);
    REQUIRE(all);
    return *all;
  }
  ExportedMemory at(std::uint64_t base, std::uint64_t size) {
    ExportedMemory shown = exported(memories.emplace_back(context, 1), 0, 1);
    shown.base = base;
    shown.size = size;
    return shown;
  }
  int open() const { return cuda.live().mappings; }
};

TEST_CASE_METHOD(Fixture,
                 "a registration is opened once for an allocation, wherever ipc memory is in it") {
  RegistrationCache cache(true, 1 << 20);
  const DeviceMemory memory(context, 10000);
  auto* const bytes = reinterpret_cast<char*>(memory.address());
  std::memset(bytes, 0, 10000);
  bytes[500] = 5;
  bytes[9000] = 9;
  const ExportedMemory first = exported(memory, 500, 100);
  const ExportedMemory second = exported(memory, 9000, 1000);
  const auto mapped = cache.map(context, first, 3);
  CHECK(mapped->address_of(first) != memory.address() + 500);
  CHECK(*reinterpret_cast<const char*>(mapped->address_of(first)) == 5);
  CHECK(cache.map(context, second, 3) == mapped);
  CHECK(*reinterpret_cast<const char*>(mapped->address_of(second)) == 9);
  CHECK(open() == 1);
  CHECK(cache.map(context, first, 2) != mapped);
  cache.map(context, at(first.base + first.size, 100), 3);  // beside it
  CHECK(open() == 2);  // that of the other rank is the same for the driver
  CHECK(counter(cache, "hits") == 1);
  CHECK(counter(cache, "misses") == 3);
  CHECK(counter(cache, "entries") == 3);
  CHECK(counter(cache, "bytes") == 20100);
  cache.clear();
  CHECK(open() == 1);  // the first is in use
  CHECK(counter(cache, "bytes") == 0);
}

TEST_CASE_METHOD(Fixture, "a registration of memory that was freed is not hit at its address") {
  RegistrationCache cache(true, 1 << 20);
  for (const auto& [base, size] : {std::pair{1000, 100}, std::pair{950, 60}, std::pair{1099, 60},
                                   std::pair{900, 500}, std::pair{1020, 10}}) {
    CAPTURE(base, size);
    cache.clear();
    cache.map(context, at(1000, 100), 1);
    cache.map(context, at(1300, 10), 1);
    const auto evicted = counter(cache, "evicted_for_overlap");
    const bool overlaps_both = size == 500;
    const ExportedMemory later =
        at(static_cast<std::uint64_t>(base), static_cast<std::uint64_t>(size));
    cache.map(context, later, 1);
    CHECK(counter(cache, "evicted_for_overlap") == evicted + (overlaps_both ? 2 : 1));
    CHECK(open() == (overlaps_both ? 1 : 2));
    const auto hits = counter(cache, "hits");
    cache.map(context, later, 1);
    CHECK(counter(cache, "hits") == hits + 1);
  }
  // The id alone, or the handle alone, tells.
  ExportedMemory same = at(5000, 100);
  cache.map(context, same, 1);
  const auto hits = counter(cache, "hits");
  ++same.buffer_id;
  cache.map(context, same, 1);
  const std::uint64_t id = same.buffer_id;
  same = at(5000, 100);
  same.buffer_id = id;
  cache.map(context, same, 1);
  CHECK(counter(cache, "hits") == hits);
}

TEST_CASE_METHOD(Fixture, "the registration used least recently makes room, and none in use") {
  RegistrationCache cache(true, 300);
  const ExportedMemory a = at(0, 100);
  const ExportedMemory b = at(1000, 100);
  const ExportedMemory c = at(2000, 100);
  const auto used = cache.map(context, a, 1);
  cache.map(context, b, 1);
  cache.map(context, c, 1);
  cache.map(context, b, 1);
  cache.map(context, at(3000, 100), 1);  // instead of c
  CHECK(counter(cache, "evicted_for_room") == 1);
  const auto misses = counter(cache, "misses");
  cache.map(context, b, 1);
  cache.map(context, a, 1);
  CHECK(counter(cache, "misses") == misses);
  cache.map(context, c, 1);
  CHECK(counter(cache, "misses") == misses + 1);
  // One that is larger than the limit is open while it is used.
  const auto large = cache.map(context, at(5000, 1000), 2);
  CHECK(counter(cache, "entries") == 2);
  CHECK(open() == 2);
}

TEST_CASE_METHOD(Fixture, "a registration that is not kept, or cannot be opened, leaves nothing") {
  RegistrationCache off(false, 1 << 20);
  const ExportedMemory memory = at(0, 100);
  for (int i = 0; i < 3; ++i) {
    const auto mapped = off.map(context, memory, 1);
    CHECK(open() == 1);
  }
  CHECK(open() == 0);
  CHECK(counter(off, "misses") == 3);
  CHECK(counter(off, "entries") == 0);
  RegistrationCache cache(true, 1 << 20);
  cuda.fail("cuIpcOpenMemHandle_v2", kMapFailed);
  CHECK_THROWS_AS(cache.map(context, memory, 1), DriverError);
  CHECK(counter(cache, "entries") == 0);
  CHECK(counter(cache, "bytes") == 0);
  cache.map(context, memory, 1);
  CHECK(counter(cache, "misses") == 2);
}

TEST_CASE_METHOD(Fixture, "registration caches stand what several threads do") {
  RegistrationCache cache(true, 4096);
  std::vector<ExportedMemory> shown;
  for (std::uint64_t i = 0; i < 64; ++i) {
    shown.push_back(at(i % 16 * 64, 32 + 37 * i % 256));
    *reinterpret_cast<std::uint8_t*>(memories.back().address()) = static_cast<std::uint8_t>(i);
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 3000; ++i) {
        // Allocations that come and go at the same addresses.
        const std::size_t which = random() % shown.size();
        const auto mapped = cache.map(context, shown[which], static_cast<int>(random() % 2));
        const auto at = mapped->address_of(shown[which]);
        if (*reinterpret_cast<const std::uint8_t*>(at) != which) ++wrong;
        if (random() % 500 == 0) cache.clear();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(counter(cache, "bytes") <= 4096);
  CHECK(counter(cache, "hits") + counter(cache, "misses") == 12000);
  cache.clear();
  CHECK(open() == 0);
}

TEST_CASE_METHOD(Fixture,
                 "ipc of a handle whose owner was first to close it is an error that names him") {
  ExportedMemory shown;
  {
    const DeviceMemory memory(context, 100);
    shown = exported(memory, 0, 100);
  }
  RegistrationCache cache(true, 1 << 20);
  CHECK_THROWS_WITH(cache.map(context, shown, 7),
                    Contains("mapping memory of rank 7: cuIpcOpenMemHandle_v2") && Contains("400"));
  CHECK(counter(cache, "entries") == 0);
  CHECK(open() == 0);
}

TEST_CASE_METHOD(Fixture,
                 "ipc exports no more than an allocation, and passes the driver's errors on") {
  const DeviceMemory memory(context, 100);
  CHECK_THROWS_WITH(export_memory(*context, memory.address() + 50, 51),
                    Contains("the 51 bytes reach beyond their allocation"));
  CHECK_THROWS_WITH(export_memory(*context, 8, 1), Contains("exporting memory of GPU 0"));
  cuda.fail("cuIpcGetMemHandle", kNotSupported);
  CHECK_THROWS_WITH(export_memory(*context, memory.address(), 1), Contains("cuIpcGetMemHandle"));
  // It cannot export every kind of memory, which is told before a peer tries.
  cuda.forbid_ipc(memory.address());
  const int calls = cuda.calls("cuIpcGetMemHandle");
  CHECK_FALSE(export_memory(*context, memory.address(), 100));
  CHECK(cuda.calls("cuIpcGetMemHandle") == calls);
}

}  // namespace
