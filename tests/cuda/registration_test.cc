// SPDX-License-Identifier: Apache-2.0
// Registrations that are kept: hits, misses and what ends them, by themselves and with a CUDA
// driver that is a fake.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/ipc/registrations.h"
#include "backends/gpu/driver/memory.h"
#include "tests/support/fakes/fake_cuda.h"
#include "tests/support/fakes/stream_fiber.h"
#include "tests/support/ranks/ranks.h"

namespace {

using namespace ronde::cuda;
using Catch::Contains;
using ronde::test::FakeCuda;

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
  std::uint64_t counter(const std::string& name) const {
    ronde::StatsGroup group;
    cache.add_to(group);
    return ronde::test::counter_of(group, "registration_" + name);
  }

  RegistrationCache cache;
};

TEST_CASE_METHOD(Fixture,
                 "a registration is opened once for an allocation, wherever ipc memory is in it") {
  const DeviceMemory memory(context, 10000);
  auto* const bytes = reinterpret_cast<char*>(memory.address());
  bytes[500] = 5;
  bytes[9000] = 9;
  const ExportedMemory first = exported(memory, 500, 100);
  const ExportedMemory second = exported(memory, 9000, 1000);
  const DevicePointer mapped = cache.map(context, first, 3);
  CHECK((mapped != memory.address() + 500 || ronde::test::fake::kStreamsAreFibers));
  CHECK(*reinterpret_cast<const char*>(mapped) == 5);
  CHECK(cache.map(context, second, 3) == mapped + 8500);
  CHECK(*reinterpret_cast<const char*>(mapped + 8500) == 9);
  CHECK(open() == 1);
  cache.map(context, first, 2);
  CHECK(open() == 1);  // that of the other rank is the same for the driver
  CHECK(counter("hits") == 1);
  CHECK(counter("misses") == 2);
  CHECK(counter("entries") == 2);
  CHECK(counter("bytes") == 20000);
  cache.make_room();
  CHECK(open() == 0);
  CHECK(counter("bytes") == 0);
  CHECK(counter("evicted_for_room") == 2);
}

TEST_CASE_METHOD(Fixture, "a registration of memory that was freed is not hit at its address") {
  ExportedMemory memory = at(5000, 100);
  cache.map(context, memory, 1);
  const auto is_replaced = [&] {
    const auto misses = counter("misses");
    cache.map(context, memory, 1);
    CHECK(open() == 1);
    CHECK(counter("bytes") == memory.size);
    return counter("misses") == misses + 1;
  };
  CHECK_FALSE(is_replaced());
  ++memory.buffer_id;
  CHECK(is_replaced());
  memory.size = 50;
  CHECK(is_replaced());
  memory.handle = at(0, 1).handle;
  CHECK(is_replaced());
}

TEST_CASE_METHOD(Fixture, "an ipc registration where freed ones lay closes those alone") {
  for (const std::uint64_t base : {1000, 2000, 4000}) cache.map(context, at(base, 1000), 3);
  cache.map(context, at(1500, 700), 2);  // of another rank
  CHECK(open() == 4);
  cache.map(context, at(1900, 200), 3);  // reaches into the first two
  CHECK(open() == 3);
  CHECK(counter("entries") == 3);
  CHECK(counter("bytes") == 1000 + 700 + 200);
  cache.map(context, at(3000, 1000), 3);  // touches none
  CHECK(open() == 4);
}

TEST_CASE_METHOD(Fixture,
                 "a registration that cannot be opened names the owner, and is opened next time") {
  const ExportedMemory memory = at(0, 100);
  cuda.fail("cuIpcOpenMemHandle_v2", kMapFailed);
  CHECK_THROWS_WITH(cache.map(context, memory, 7),
                    Contains("mapping memory of rank 7: cuIpcOpenMemHandle_v2") && Contains("205"));
  CHECK(open() == 0);
  CHECK(counter("bytes") == 0);
  cache.map(context, memory, 7);
  CHECK(counter("misses") == 2);
  CHECK(counter("bytes") == 100);
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
