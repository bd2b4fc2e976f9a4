// SPDX-License-Identifier: Apache-2.0
// How kernels are launched, over a driver that is a fake: launches, their tables, and what fails.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "backends/gpu/kernels/kernel_set.h"
#include "tests/support/fakes/fake_cuda.h"

namespace {

using namespace ronde::cuda;
using ronde::DataType;
using ronde::Scaling;
using ronde::test::FakeCuda;

/// What moves need. Nothing is behind most of the addresses: only launches are looked at.
struct Parts {
  FakeCuda cuda;
  const std::shared_ptr<DeviceContext> context = std::make_shared<DeviceContext>(cuda.api(), 0);
  KernelSet kernels{context, "an image"};
  Stream stream{context};
  std::vector<int> source = std::vector<int>(30);
  std::vector<int> target = std::vector<int>(30);

  std::vector<unsigned> blocks;                ///< of launches of kernels that watch() was given
  std::vector<kernels::SegmentCopy> segments;  ///< of the last launch of one that moves
  void watch(const std::string& kernel, bool is_move = true) {
    cuda.add_kernel(kernel, [this, is_move](const FakeCuda::Launch& launch) {
      blocks.push_back(launch.blocks);
      if (is_move) {
        const auto table = launch.argument<kernels::CopyArguments>(0);
        segments.assign(table.segments, table.segments + table.count);
      }
      return [] {};
    });
  }
};

TEST_CASE_METHOD(Parts, "a cuda launch moves 169 segments, more take several, and none is none") {
  std::vector<float> from(500 * 100), to(500 * 100);
  std::vector<KernelSet::Move> moves;
  for (std::size_t i = 0; i < 500; ++i) {
    moves.push_back({from.data() + 100 * i, to.data() + 100 * i, 1 + i % 100});
  }
  const auto launches_of = [&](std::size_t count, double factor) {
    const int before = cuda.calls("cuLaunchKernel");
    kernels.move(stream, {moves.data(), count}, {.scaling = Scaling{factor, 1.0}});
    return cuda.calls("cuLaunchKernel") - before;
  };
  for (const double factor : {1.0, 2.0}) {
    CHECK(launches_of(169, factor) == 1);
    CHECK(launches_of(170, factor) == 2);
    CHECK(launches_of(500, factor) == 3);
  }
  moves[0].count = 0;
  CHECK(launches_of(0, 1.0) == 0);
  CHECK(launches_of(1, 1.0) == 0);
  CHECK(launches_of(170, 1.0) == 1);
}

TEST_CASE_METHOD(Parts,
                 "cuda kernels have blocks by their bytes, and few where a link limits them") {
  for (const char* const name : {"ronde_move_4", "ronde_copy_f32_f32", "ronde_copy_f32_f16"}) {
    watch(name);
  }
  watch("ronde_reduce_f32", false);
  const std::vector<KernelSet::Move> move = {{source.data(), target.data(), 40000}};
  kernels.move(stream, move, {});
  kernels.move(stream, move, {.scaling = Scaling{2.0, 1.0}});
  kernels.move(stream, move, {.to = DataType::F16});
  // The fake GPU has 132 multiprocessors, which hold 4 blocks of some kernels and 3 of others.
  const std::vector<KernelSet::Move> large = {{source.data(), target.data(), 40'000'000}};
  kernels.move(stream, large, {});
  kernels.move(stream, large, {.scaling = Scaling{2.0, 1.0}});
  kernels.move(stream, large, {.traffic = Traffic::Link});
  const std::vector<DevicePointer> inputs(8, DevicePointer{4096});
  for (const Traffic traffic : {Traffic::Link, Traffic::Local}) {
    kernels.reduce(stream, 4096, {inputs.data(), 2}, 40'000'000, {}, traffic);
    kernels.reduce(stream, 4096, inputs, 40'000'000, {.op = ronde::ReduceOp::Max}, traffic);
  }
  CHECK(blocks ==
        std::vector<unsigned>{20, 20, 20, 4 * 132, 3 * 132, 32, 32, 32, 3 * 132, 3 * 132});
}

TEST_CASE_METHOD(Parts, "cuda moves of elements that are not aligned are of bytes") {
  watch("ronde_move_1");
  const auto* const odd = reinterpret_cast<const std::byte*>(source.data()) + 2;
  const std::vector<KernelSet::Move> some = {{source.data(), target.data(), 10},
                                             {odd, target.data() + 10, 20}};
  kernels.move(stream, some, {});
  REQUIRE(segments.size() == 2);
  CHECK(segments[1].source == odd);
  CHECK(segments[1].count == 80);
  segments.clear();
  kernels.move(stream, std::vector<KernelSet::Move>{{source.data(), target.data(), 10}}, {});
  CHECK(segments.empty());
}

TEST_CASE_METHOD(Parts, "cuda kernels refuse to compute with elements that are not aligned") {
  const std::vector<KernelSet::Move> some = {
      {reinterpret_cast<const void*>(0x1002), target.data(), 20}};
  const std::string text =
      "a tensor of f32 lies at 0x1002 on a GPU, which computes only with elements at multiples of "
      "their 4 bytes: let it begin at one";
  CHECK_THROWS_WITH(kernels.move(stream, some, {.to = DataType::F16}), text);
  CHECK_THROWS_WITH(kernels.move(stream, some, {.scaling = Scaling{2.0, 1.0}}), text);
  const std::vector<DevicePointer> inputs = {0x1000, 0x2000};
  CHECK_THROWS_WITH(kernels.reduce(stream, 0x1002, inputs, 20, {}), text);
}

TEST_CASE_METHOD(Parts, "a cuda segment of more elements than a launch counts is split") {
  watch("ronde_copy_f32_f16");
  const std::vector<KernelSet::Move> large = {
      {source.data(), target.data(), (std::size_t{5} << 30) + 1}};
  kernels.move(stream, large, {.to = DataType::F16});
  REQUIRE(segments.size() == 3);
  constexpr std::uint32_t kMost = std::uint32_t{1} << 31;
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    CHECK(segments[i].source == reinterpret_cast<std::byte*>(source.data()) + i * 4 * kMost);
    CHECK(segments[i].target == reinterpret_cast<std::byte*>(target.data()) + i * 2 * kMost);
    CHECK(segments[i].count == (i < 2 ? kMost : kMost / 2 + 1));
    CHECK(segments[i].first_tile == i * (kMost / 2048));
  }
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
  cuda.fail("cuModuleGetFunction", 500);
  CHECK_THROWS_WITH(KernelSet(context, "an image"),
                    Catch::Contains("looking for the kernel ronde_move_1"));
  CHECK(cuda.live().modules == 0);
}

}  // namespace
