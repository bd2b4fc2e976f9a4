// SPDX-License-Identifier: Apache-2.0
// How segments are moved, over a driver that is a fake: launches, tables, and what fails.
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include "backends/cuda/segment_mover.h"
#include "gpu_ranks.h"
#include "machine.h"

namespace {

using namespace ronde::cuda;
using ronde::DataType;
using ronde::Scaling;
using ronde::test::FakeCuda;
using ronde::test::FakeMachine;
using ronde::test::Machine;
using ronde::test::SharedBytes;

/// What a mover needs, and moves of one element each.
struct Parts {
  Parts() {
    for (std::size_t i = 0; i < source.size(); ++i) moves.push_back({&source[i], &target[i], 1});
  }
  FakeMachine machine;
  FakeCuda& cuda = machine.cuda;
  const std::shared_ptr<DeviceContext> context = std::make_shared<DeviceContext>(cuda.api(), 0);
  KernelSet kernels{context, "an image"};
  Stream stream{context};
  EventPool events{context};
  PinnedPool pinned{context, 4 << 20};
  std::vector<int> source = std::vector<int>(4000, 7);
  std::vector<int> target = std::vector<int>(4000);
  std::vector<SegmentMover::Move> moves;
};

TEST_CASE("hundreds of segments are one cuda launch, and none is none") {
  Machine machine;
  const SharedBytes source(machine, 300 * 400);
  const SharedBytes target(machine, 300 * 400);
  std::vector<SegmentMover::Move> moves;
  for (std::size_t i = 0; i < 300; ++i) {
    moves.push_back({source.at(400 * i), target.at(400 * i), i % 101});
  }
  for (const double factor : {1.0, 2.0}) {
    const int launches = machine.launches();
    machine.mover.move(moves, {.scaling = Scaling{factor, 1.0}});
    CHECK(machine.launches() == launches + 1);
  }
  const int launches = machine.launches();
  machine.mover.move({}, {});
  machine.mover.move({moves.data(), 1}, {});  // of no elements
  CHECK(machine.launches() == launches);
}

TEST_CASE_METHOD(Parts, "a cuda copy has blocks by its bytes, and few where a link limits it") {
  std::vector<unsigned> blocks;
  for (const char* const name : {"ronde_copy_u8_u8", "ronde_copy_f32_f32", "ronde_copy_f32_f16"}) {
    cuda.add_kernel(name, [&blocks](const FakeCuda::Launch& launch) {
      blocks.push_back(launch.blocks);
      return FakeCuda::Action{.run = [] {}};
    });
  }
  SegmentMover mover(kernels, stream, events, pinned);
  const std::vector<SegmentMover::Move> move = {{source.data(), target.data(), 40000}};
  mover.move(move, {});
  mover.move(move, {.scaling = Scaling{2.0, 1.0}});
  mover.move(move, {.to = DataType::F16});
  CHECK(blocks == std::vector<unsigned>{20, 20, 20});
  // The fake GPU has 132 multiprocessors.
  const std::vector<SegmentMover::Move> large = {{source.data(), target.data(), 40'000'000}};
  mover.move(large, {});
  mover.move(large, {.traffic = Traffic::Link});
  CHECK(std::vector(blocks.begin() + 3, blocks.end()) == std::vector<unsigned>{4 * 132, 32});
}

TEST_CASE_METHOD(
    Parts, "a cuda table of segments is not overwritten while a kernel still waits to read it") {
  SegmentMover mover(kernels, stream, events, pinned);
  std::vector<int> second(4000);
  cuda.hold(stream.handle());
  mover.move(std::vector<SegmentMover::Move>{{source.data(), target.data(), 4000}}, {});
  mover.move(std::vector<SegmentMover::Move>{{target.data(), second.data(), 4000}}, {});
  CHECK(pinned.counts().misses == 2);  // both are in flight
  cuda.release(stream.handle());
  CHECK(target == source);
  CHECK(second == source);
  mover.move(std::vector<SegmentMover::Move>{{source.data(), target.data(), 4000}}, {});
  CHECK(pinned.counts().misses == 2);
  CHECK(pinned.counts().hits == 1);
}

TEST_CASE_METHOD(
    Parts, "a cuda table of segments grows while the stream is held, and nobody waits for it") {
  {
    SegmentMover mover(kernels, stream, events, pinned);
    cuda.hold(stream.handle());
    mover.move(std::span(moves).first(1), {});
    mover.move(std::span(moves).subspan(1), {});
    CHECK(cuda.calls("cuMemFree_v2") == 0);
    cuda.release(stream.handle());
    CHECK(target == source);
    CHECK(cuda.live().allocations == 2);
  }
  CHECK(cuda.live().allocations == 0);
}

TEST_CASE_METHOD(Parts,
                 "cuda moves of up to as many segments as were reserved acquire nothing more") {
  SegmentMover mover(kernels, stream, events, pinned);
  mover.reserve(4000);
  const auto acquired = [&] { return cuda.calls("cuMemAlloc_v2") + cuda.calls("cuMemHostAlloc"); };
  const int before = acquired();
  CHECK(before > 1);
  cuda.hold(stream.handle());
  for (const std::size_t count : {1, 40, 161, 600, 4000}) {
    mover.move(std::span(moves).first(count), {});
    mover.move(std::span(moves).first(count), {});
  }
  CHECK(acquired() == before);
  cuda.release(stream.handle());
  CHECK(target == source);
}

TEST_CASE("cuda kernels that are missing are an error that says what to do") {
  FakeCuda cuda;
  const auto context = std::make_shared<DeviceContext>(cuda.api(), 0);
  CHECK_THROWS_WITH(KernelSet(context, nullptr),
                    "this build of Ronde has no kernels for GPUs, as nvcc was not found. Build it "
                    "with the CUDA Toolkit 12 or 13");
  cuda.fail("cuModuleLoadData", 209);
  CHECK_THROWS_WITH(KernelSet(context, "an image"),
                    Catch::Contains("loading Ronde's kernels onto GPU 0: cuModuleLoadData"));
  CHECK_THROWS_WITH(KernelSet(context, "an image"),
                    Catch::Contains("looking for the kernel ronde_copy_u8_u8"));
  CHECK(cuda.live().modules == 0);
}

}  // namespace
