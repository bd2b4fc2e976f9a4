// SPDX-License-Identifier: Apache-2.0
// What the kernels compute, run on the CPU thread by thread: the bits of core's loops, which are
// tested against double precision.
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "backends/cuda/segment_mover.h"
#include "fake_cuda.h"
#include "fake_kernels.h"
#include "ronde/kernels.h"

namespace {

using namespace ronde;
using namespace ronde::cuda;
using test::FakeCuda;

constexpr std::array kOps = {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product};

struct Machine {
  Machine() { test::add_ronde_kernels(cuda); }

  FakeCuda cuda;
  std::shared_ptr<const DeviceContext> context = std::make_shared<DeviceContext>(cuda.api(), 0);
  KernelSet kernels{context, "an image"};
  Stream stream{context};
  EventPool events{context};
  PinnedPool pinned{context, 1 << 20};
  SegmentMover mover{kernels, stream, events, pinned};
};

using Bytes = std::vector<std::byte>;

/// Any bits, and among floating-point ones the special values and such as halves can hold.
Bytes values_of(DataType dtype, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(count * size_of(dtype) + 64);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const auto put = [&](auto number, std::size_t at) {
    std::memcpy(bytes.data() + at * sizeof(number), &number, sizeof(number));
  };
  for (std::size_t i = 0; i < count; i += 2) {
    const double value =
        std::ldexp(static_cast<double>(random()) / 1e9 - 2.0, static_cast<int>(random() % 60) - 40);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const std::array<double, 7> special = {
        0.0, -0.0, kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN(), 65519.99, 1.0};
    const double chosen = random() % 8 == 0 ? special[random() % special.size()] : value;
    if (dtype == DataType::F32) put(static_cast<float>(chosen), i);
    if (dtype == DataType::F64) put(chosen, i);
  }
  return bytes;
}

std::byte* at(Bytes& bytes, std::size_t offset) {
  return bytes.data() + offset;
}

/// Whether they have the same bits.
bool same(const Bytes& a, const Bytes& b, std::size_t bytes) {
  return std::memcmp(a.data(), b.data(), bytes) == 0;
}

/// Counts around those of a tile and of a chunk.
constexpr std::array<std::size_t, 6> kCounts = {1, 7, 255, 8192, 8193, 20001};

TEST_CASE("cuda reductions have the bits of those on the CPU") {
  Machine machine;
  for (const DataType dtype : kAllDataTypes) {
    for (const ReduceOp op : kOps) {
      for (const std::size_t inputs : {1U, 2U, 3U, 5U}) {
        const std::size_t count = kCounts[(inputs + static_cast<std::size_t>(op)) % kCounts.size()];
        CAPTURE(to_string(dtype), to_string(op), inputs, count);
        std::vector<Bytes> values;
        std::vector<const void*> pointers;
        std::vector<DevicePointer> addresses;
        for (std::size_t i = 0; i < inputs; ++i) {
          values.push_back(values_of(dtype, count, static_cast<unsigned>(17 * i + inputs)));
        }
        // One has nothing to add; another is not aligned.
        const bool lacks_one = inputs == 3 || inputs == 5;
        for (std::size_t i = 0; i < inputs; ++i) {
          const std::size_t shift = inputs == 5 && i == 1 ? size_of(dtype) : 0;
          const bool is_lacking = lacks_one && i == 1 + inputs % 2;
          pointers.push_back(is_lacking ? nullptr : at(values[i], shift));
          addresses.push_back(reinterpret_cast<DevicePointer>(pointers.back()));
        }
        Reduction reduction{.dtype = dtype, .op = op};
        if (inputs != 2) reduction.prescale = 0.75;
        if (inputs != 1) reduction.final = {1.5, 3.0};
        Bytes expected(count * size_of(dtype));
        Bytes reduced(count * size_of(dtype));
        best_kernels().reduce(expected.data(), pointers, count, reduction, Store::Regular);
        machine.kernels.reduce(machine.stream, reinterpret_cast<DevicePointer>(reduced.data()),
                               addresses, count, reduction);
        CHECK(same(reduced, expected, expected.size()));
      }
    }
  }
}

TEST_CASE("a cuda reduction may write into one of its inputs, or have none") {
  Machine machine;
  Bytes first = values_of(DataType::F32, 9000, 1);
  const Bytes second = values_of(DataType::F32, 9000, 2);
  const Reduction reduction{.dtype = DataType::F32, .op = ReduceOp::Sum};
  Bytes expected(9000 * 4);
  const std::array<const void*, 2> pointers = {first.data(), second.data()};
  best_kernels().reduce(expected.data(), pointers, 9000, reduction, Store::Regular);
  const std::array<DevicePointer, 2> addresses = {reinterpret_cast<DevicePointer>(first.data()),
                                                  reinterpret_cast<DevicePointer>(second.data())};
  machine.kernels.reduce(machine.stream, addresses[0], addresses, 9000, reduction);
  CHECK(same(first, expected, expected.size()));
  const Reduction smallest{.dtype = DataType::I16, .op = ReduceOp::Min};
  machine.kernels.reduce(machine.stream, addresses[0], {}, 3, smallest);
  best_kernels().reduce(expected.data(), {}, 3, smallest, Store::Regular);
  CHECK(same(first, expected, 6));
  CHECK_THROWS_WITH(machine.kernels.reduce(machine.stream, addresses[0],
                                           std::vector<DevicePointer>(65), 3, smallest),
                    "a kernel reduces 64 inputs at most, not 65");
}

/// Segments of these counts, one behind the other on one side, with gaps on the other.
struct Layout {
  std::vector<std::size_t> counts = {5, 8192, 0, 1, 8200, 300, 16384, 3};
  std::size_t total = 0;
  std::vector<std::size_t> packed;
  std::vector<std::size_t> spread;

  explicit Layout(std::size_t gap) {
    for (const std::size_t count : counts) {
      packed.push_back(total);
      spread.push_back(total + packed.size() * gap);
      total += count;
    }
  }
  std::size_t spread_total() const { return spread.back() + counts.back(); }
};

struct Pair {
  DataType from;
  DataType to;
};

std::vector<Pair> pairs() {
  std::vector<Pair> all;
  for (const DataType from : kAllDataTypes) {
    for (const DataType to : kAllDataTypes) {
      if (KernelSet::can_copy(from, to)) all.push_back({from, to});
    }
  }
  return all;
}

/// `count` elements on the CPU.
void convert(std::byte* target, const std::byte* source, std::size_t count, Pair pair,
             Scaling scaling) {
  const Kernels& loops = best_kernels();
  if (is_half(pair.from) && pair.to != pair.from) {
    loops.widen(target, source, count, {pair.from, pair.to, scaling}, Store::Regular);
  } else if (is_half(pair.to) && pair.to != pair.from) {
    loops.narrow(target, source, count, {pair.to, pair.from, scaling}, Store::Regular);
  } else {
    const void* const input = source;
    loops.reduce(target, {&input, 1}, count, {.dtype = pair.from, .final = scaling},
                 Store::Regular);
  }
}

TEST_CASE("cuda packs and unpacks segments by one kernel, with the bits of the CPU's conversions") {
  Machine machine;
  const std::array<Scaling, 3> scalings = {Scaling{}, Scaling{0.3, 1.0}, Scaling{1.5, 7.0}};
  CHECK(pairs().size() == 18);
  for (const auto& [from, to] : pairs()) {
    for (const Scaling& scaling : scalings) {
      for (const std::size_t gap : {0U, 64U, 3U}) {
        const Layout layout(gap);
        CAPTURE(to_string(from), to_string(to), scaling.factor, gap);
        Bytes source = values_of(from, layout.spread_total(), 5);
        Bytes packed(layout.total * size_of(to) + 16);
        Bytes expected(packed.size());
        std::vector<SegmentMover::Move> moves;
        for (std::size_t i = 0; i < layout.counts.size(); ++i) {
          std::byte* const input = at(source, layout.spread[i] * size_of(from));
          const std::size_t offset = layout.packed[i] * size_of(to);
          moves.push_back({input, at(packed, offset), layout.counts[i]});
          convert(at(expected, offset), input, layout.counts[i], {from, to}, scaling);
        }
        const int launches = machine.cuda.calls("cuLaunchKernel");
        machine.mover.move(moves, {.from = from, .to = to, .scaling = scaling, .canonical = true});
        CHECK(machine.cuda.calls("cuLaunchKernel") == launches + 1);
        CHECK(same(packed, expected, packed.size()));
      }
    }
  }
}

TEST_CASE("cuda segments that only move keep their bits, and those without a source are neutral") {
  Machine machine;
  Bytes source = values_of(DataType::F32, 10000, 3);
  Bytes target(10000 * 4);
  const std::vector<SegmentMover::Move> moves = {{source.data(), target.data(), 9000},
                                                 {nullptr, at(target, 36000), 1000}};
  machine.mover.move({moves.data(), 1}, {});
  CHECK(same(source, target, 36000));  // NaNs, too
  for (const ReduceOp op : kOps) {
    machine.mover.move(moves, {.op = op});
    float value = -1;
    std::memcpy(&value, at(target, 36000 + 999 * 4), sizeof(value));
    float expected = 0;
    best_kernels().reduce(&expected, {}, 1, {.dtype = DataType::F32, .op = op}, Store::Regular);
    CHECK(value == expected);
  }
  const int launches = machine.cuda.calls("cuLaunchKernel");
  machine.mover.move({}, {});
  CHECK(machine.cuda.calls("cuLaunchKernel") == launches);
}

TEST_CASE("a cuda table of segments is not overwritten while a kernel still waits to read it") {
  Machine machine;
  Bytes source = values_of(DataType::I32, 4000, 3);
  Bytes first(4000 * 4);
  Bytes second(4000 * 4);
  machine.cuda.hold(machine.stream.handle());
  machine.mover.move(std::vector<SegmentMover::Move>{{source.data(), first.data(), 4000}}, {});
  machine.mover.move(std::vector<SegmentMover::Move>{{first.data(), second.data(), 4000}}, {});
  CHECK(machine.pinned.counts().misses == 2);  // both are in flight
  machine.cuda.release(machine.stream.handle());
  CHECK(same(source, first, first.size()));
  CHECK(same(source, second, second.size()));
  machine.mover.move(std::vector<SegmentMover::Move>{{source.data(), first.data(), 4000}}, {});
  CHECK(machine.pinned.counts().misses == 2);
  CHECK(machine.pinned.counts().hits == 1);
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
  KernelSet kernels(context, "an image");
  const Stream stream(context);
  CHECK_THROWS_WITH(kernels.reduce(stream, 8, {}, 1, {}),
                    Catch::Contains("looking for the kernel ronde_reduce_f32"));
}

}  // namespace
