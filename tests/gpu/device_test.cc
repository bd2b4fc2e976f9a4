// SPDX-License-Identifier: Apache-2.0
// Contexts, streams, events and memory of GPUs, over a driver that is a fake: what is acquired is
// given back, whatever fails.
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backends/gpu/driver/memory.h"
#include "backends/gpu/driver/stream.h"
#include "backends/gpu/gpu_backends.h"
#include "backends/gpu/kernels/kernel_list.h"
#include "tests/support/fakes/fake_cuda_state.h"

namespace {

using namespace ronde::cuda;
using Catch::Contains;
using ronde::test::FakeCuda;

struct Fixture {
  FakeCuda cuda;
  std::shared_ptr<const DeviceContext> context = std::make_shared<DeviceContext>(cuda.api(), 0);
};

TEST_CASE("a GPU that is not there, or has no room for a cuda context, is an error that says so") {
  FakeCuda cuda;
  CHECK_THROWS_WITH(
      DeviceContext(cuda.api(), 1),
      Contains("CUDA failed while looking at GPU 1: cuDeviceGet: ") && Contains("(101)"));
  cuda.fail("cuDevicePrimaryCtxRetain", kOutOfMemory);
  CHECK_THROWS_WITH(
      DeviceContext(cuda.api(), 0),
      Contains("making a context on GPU 0: cuDevicePrimaryCtxRetain: ") && Contains("(2)"));
  CHECK(cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda contexts of a thread come back in their order") {
  FakeCuda cuda({.devices = 2});
  const auto first = std::make_shared<DeviceContext>(cuda.api(), 0);
  const auto second = std::make_shared<DeviceContext>(cuda.api(), 1);
  const Current outer(*first);
  CHECK(ronde::test::fake::current_device() == 0);
  {
    const Current inner(*second);
    CHECK(ronde::test::fake::current_device() == 1);
    std::thread([&] {
      const Current own(*first);
      CHECK(ronde::test::fake::current_device() == 0);
    }).join();
  }
  CHECK(ronde::test::fake::current_device() == 0);
}

TEST_CASE("a backend of GPUs claims the types that cuda kernels reduce, and no others") {
  std::set<std::string> kernels;
#define ADD_NAME(name, ...) kernels.insert(#name);
  RONDE_REDUCE_KERNELS(ADD_NAME)
  for (const ronde::DataType dtype : ronde::kAllDataTypes) {
    if (is_complex(dtype)) continue;  // no backend gets these
    INFO(to_string(dtype));
    CHECK(gpu_capabilities().supports(dtype) ==
          kernels.contains("ronde_reduce_" + std::string(to_string(dtype))));
  }
}

TEST_CASE("cuda kernels that the driver does not load, or the GPU not run, are told beforehand") {
  CHECK(why_no_kernels(90, 13000, 13).empty());
  CHECK(why_no_kernels(80, 12080, 12).empty());
  CHECK(why_no_kernels(100, 13010, 12).empty());
  CHECK_THAT(why_no_kernels(90, 12080, 13),
             Contains("CUDA Toolkit 13") && Contains("driver of CUDA 12.8"));
  CHECK_THAT(why_no_kernels(75, 13000, 13), Contains("compute capability 7.5"));
}

TEST_CASE_METHOD(Fixture, "cuda events are used again, and what is owned may move") {
  {
    Event event(context);
    const EventHandle first = event.handle();
    Event other(context);
    event = std::move(other);
    CHECK(event.is_done());
    CHECK(Event(context).handle() == first);
    CHECK(cuda.live().events == 2);
    PinnedMemory memory(context, 100);
    PinnedMemory second(context, 50);
    second = std::move(memory);
    CHECK(second.bytes() == 100);
    std::memset(second.data(), 1, second.bytes());
    second = {};
    memory = {};
    CHECK(cuda.live().host_allocations == 0);
  }
  context = nullptr;
  CHECK(cuda.live() == FakeCuda::Live{});
}

TEST_CASE_METHOD(Fixture, "cuda calls that fail leave nothing behind") {
  const auto before = cuda.live();
  cuda.fail("cuMemAlloc_v2", kOutOfMemory);
  CHECK_THROWS_WITH(DeviceMemory(context, 1 << 20),
                    Contains("allocating 1048576 bytes on GPU 0: cuMemAlloc_v2"));
  cuda.fail("cuStreamCreateWithPriority", kOutOfMemory);
  CHECK_THROWS_AS(Stream(context), DriverError);
  cuda.fail("cuEventCreate", kOutOfMemory);
  CHECK_THROWS_AS(Event(context), DriverError);
  cuda.fail("cuMemHostAlloc", kOutOfMemory);
  CHECK_THROWS_WITH(PinnedMemory(context, 5000), Contains("pinning 5000 bytes of host memory"));
  cuda.fail("cuCtxPushCurrent_v2", kInvalidValue);
  CHECK_THROWS_WITH(Current(*context), Contains("using the context of GPU 0"));
  CHECK(cuda.live() == before);
  CHECK(context->lost() == 0);
}

TEST_CASE_METHOD(Fixture, "cuda memory that cannot be given back is counted, but not at the end") {
  {
    const DeviceMemory memory(context, 8);
    cuda.fail("cuMemFree_v2", 700);
  }
  CHECK(context->lost() == 1);
  {
    const Stream stream(context);
    cuda.fail("cuStreamDestroy_v2", kDeinitialized);
  }
  CHECK(context->lost() == 1);
  {
    const DeviceMemory memory(context, 8);
    cuda.fail("cuCtxPushCurrent_v2", kInvalidValue);
  }
  CHECK(context->lost() == 2);
}

}  // namespace
