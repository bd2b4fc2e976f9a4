// SPDX-License-Identifier: Apache-2.0
// Registrations that are kept: hits, misses and what ends them, by themselves and with a CUDA
// driver that is a fake.
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backends/cuda/memory.h"
#include "backends/cuda/registrations.h"
#include "fake_cuda.h"

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

struct CacheFixture {
  int open = 0;
  Registration get(RegistrationCache& cache, const Region& region) {
    return cache.get(region,
                     [this] { return ++open, Registration(&open, [](int* count) { --*count; }); });
  }
};

TEST_CASE_METHOD(CacheFixture, "a registration is opened once for an allocation") {
  RegistrationCache cache(true, 1 << 20);
  const auto first = get(cache, {1, 1000, 100, "a"});
  get(cache, {1, 1000, 100, "a"});
  CHECK(open == 1);
  get(cache, {2, 1000, 100, "a"});  // of another rank
  get(cache, {1, 1100, 100, "b"});  // beside it
  CHECK(open == 3);
  CHECK(counter(cache, "hits") == 1);
  CHECK(counter(cache, "misses") == 3);
  CHECK(counter(cache, "entries") == 3);
  CHECK(counter(cache, "bytes") == 300);
  cache.clear();
  CHECK(open == 1);  // the first is in use
  CHECK(counter(cache, "bytes") == 0);
}

TEST_CASE_METHOD(CacheFixture,
                 "a registration of memory that was freed is not hit at its address") {
  RegistrationCache cache(true, 1 << 20);
  for (const Region& later :
       {Region{1, 1000, 100, "new"}, Region{1, 950, 60, "new"}, Region{1, 1099, 60, "new"},
        Region{1, 900, 500, "new"}, Region{1, 1020, 10, "new"}}) {
    CAPTURE(later.base, later.bytes, later.identity);
    cache.clear();
    get(cache, {1, 1000, 100, "old"});
    get(cache, {1, 1300, 10, "beside"});
    const auto evicted = counter(cache, "evicted_for_overlap");
    const bool hits_both = later.bytes == 500;
    get(cache, later);
    CHECK(counter(cache, "evicted_for_overlap") == evicted + (hits_both ? 2 : 1));
    CHECK(open == (hits_both ? 1 : 2));
    const auto hits = counter(cache, "hits");
    get(cache, later);
    CHECK(counter(cache, "hits") == hits + 1);
  }
}

TEST_CASE_METHOD(CacheFixture, "the registration used least recently makes room, and none in use") {
  RegistrationCache cache(true, 300);
  const auto used = get(cache, {1, 0, 100, "a"});
  get(cache, {1, 1000, 100, "b"});
  get(cache, {1, 2000, 100, "c"});
  get(cache, {1, 1000, 100, "b"});
  get(cache, {1, 3000, 100, "d"});  // instead of c
  CHECK(counter(cache, "evicted_for_room") == 1);
  const auto misses = counter(cache, "misses");
  get(cache, {1, 1000, 100, "b"});
  get(cache, {1, 0, 100, "a"});
  CHECK(counter(cache, "misses") == misses);
  get(cache, {1, 2000, 100, "c"});
  CHECK(counter(cache, "misses") == misses + 1);
  // One that is larger than the limit is open while it is used.
  const auto large = get(cache, {2, 0, 1000, "large"});
  CHECK(counter(cache, "entries") == 2);
  CHECK(open == 2);
}

TEST_CASE_METHOD(CacheFixture,
                 "a registration that is not kept, or cannot be opened, leaves nothing") {
  RegistrationCache off(false, 1 << 20);
  for (int i = 0; i < 3; ++i) {
    const auto registration = get(off, {1, 0, 100, "a"});
    CHECK(open == 1);
  }
  CHECK(open == 0);
  CHECK(counter(off, "misses") == 3);
  CHECK(counter(off, "entries") == 0);
  RegistrationCache cache(true, 1 << 20);
  const auto fails = []() -> Registration { throw std::runtime_error("no"); };
  CHECK_THROWS_WITH(cache.get({1, 0, 100, "a"}, fails), "no");
  CHECK(counter(cache, "entries") == 0);
  CHECK(counter(cache, "bytes") == 0);
  get(cache, {1, 0, 100, "a"});
  CHECK(counter(cache, "misses") == 2);
}

TEST_CASE("registration caches stand what several threads do, against a list of all that is live") {
  RegistrationCache cache(true, 4096);
  std::atomic<int> open{0};
  struct Tagged {
    Tagged(std::string name, std::atomic<int>& count) : identity(std::move(name)), open(count) {
      ++open;
    }
    ~Tagged() { --open; }
    const std::string identity;
    std::atomic<int>& open;
  };
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 3000; ++i) {
        // Allocations that come and go at the same addresses.
        const Region region{.owner = static_cast<int>(random() % 2),
                            .base = random() % 64 * 64,
                            .bytes = 32 + random() % 256,
                            .identity = std::to_string(random() % 3)};
        const auto got =
            cache.get(region, [&] { return std::make_shared<Tagged>(region.identity, open); });
        if (std::static_pointer_cast<Tagged>(got)->identity != region.identity) ++wrong;
        if (random() % 500 == 0) cache.clear();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(counter(cache, "bytes") <= 4096);
  CHECK(static_cast<std::uint64_t>(open.load()) == counter(cache, "entries"));
  CHECK(counter(cache, "hits") + counter(cache, "misses") == 12000);
  cache.clear();
  CHECK(open == 0);
}

struct CudaFixture {
  FakeCuda cuda;
  std::shared_ptr<const DeviceContext> context = std::make_shared<DeviceContext>(cuda.api(), 0);
  RegistrationCache cache{true, 1 << 30};

  ExportedMemory exported(const DeviceMemory& memory, std::size_t offset, std::size_t bytes) {
    const auto all = export_memory(*context, memory.address() + offset, bytes);
    REQUIRE(all);
    return *all;
  }
};

TEST_CASE_METHOD(CudaFixture, "ipc maps an allocation once, wherever in it the memory lies") {
  const DeviceMemory memory(context, 10000);
  auto* const bytes = reinterpret_cast<char*>(memory.address());
  std::memset(bytes, 0, 10000);
  bytes[500] = 5;
  bytes[9000] = 9;
  const ExportedMemory first = exported(memory, 500, 100);
  const ExportedMemory second = exported(memory, 9000, 1000);
  const auto mapped = map_memory(cache, context, first, 3);
  CHECK(mapped->address_of(first) != memory.address() + 500);
  CHECK(*reinterpret_cast<const char*>(mapped->address_of(first)) == 5);
  CHECK(map_memory(cache, context, second, 3) == mapped);
  CHECK(*reinterpret_cast<const char*>(mapped->address_of(second)) == 9);
  CHECK(cuda.calls("cuIpcOpenMemHandle_v2") == 1);
  CHECK(counter(cache, "hits") == 1);
  cache.clear();
  CHECK(cuda.live().mappings == 1);  // in use
}

TEST_CASE_METHOD(CudaFixture,
                 "ipc of a handle whose owner was first to close it is an error that names him") {
  ExportedMemory shown;
  {
    const DeviceMemory memory(context, 100);
    shown = exported(memory, 0, 100);
  }
  CHECK_THROWS_WITH(map_memory(cache, context, shown, 7),
                    Contains("mapping memory of rank 7: cuIpcOpenMemHandle_v2") && Contains("400"));
  CHECK(counter(cache, "entries") == 0);
  CHECK(cuda.live().mappings == 0);
}

TEST_CASE_METHOD(CudaFixture,
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
