// SPDX-License-Identifier: Apache-2.0
// What the kernels compute: the bits of core's loops, which are tested against double precision.
// Here their threads run on the CPU one by one; tests/gpu/hardware runs the same cases on a GPU.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backends/gpu/kernels/kernel_set.h"
#include "ronde/kernels.h"
#include "tests/support/gpu/machine.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::cuda;
using test::kGpuDataTypes;
using test::Machine;
using test::SharedBytes;

constexpr std::array kOps = {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product};

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

/// Counts around those of a chunk, and of tiles of all types, also of more than a grid has blocks.
constexpr std::array<std::size_t, 8> kCounts = {1, 7, 4097, 255, 8192, 150001, 8193, 32769};

TEST_CASE("blocks of a cuda grid have ranges of neighbouring tiles, as equal as can be") {
  const auto tiles = GENERATE(as<std::uint64_t>(), 1, 31, 32, 33, 97, std::uint64_t{1} << 40);
  const auto blocks = GENERATE(1U, 2U, 31U, 32U, 528U);
  std::uint64_t next = 0;
  for (unsigned block = 0; block < blocks; ++block) {
    const auto [begin, end] = kernels::tiles_of_block(tiles, {block, blocks, 0});
    CHECK(begin == next);
    CHECK((end - begin == tiles / blocks || end - begin == tiles / blocks + 1));
    next = end;
  }
  CHECK(next == tiles);
}

TEST_CASE("cuda reductions have the bits of those on the CPU") {
  Machine machine;
  for (const DataType dtype : kGpuDataTypes) {
    for (const ReduceOp op : kOps) {
      for (const std::size_t inputs : {1U, 2U, 3U, 5U}) {
        const std::size_t count =
            kCounts[(inputs + 2 * static_cast<std::size_t>(op)) % kCounts.size()];
        CAPTURE(to_string(dtype), to_string(op), inputs, count);
        std::vector<SharedBytes> values;
        std::vector<const void*> pointers;
        std::vector<DevicePointer> addresses;
        for (std::size_t i = 0; i < inputs; ++i) {
          const auto seed = static_cast<unsigned>(17 * i + inputs);
          values.emplace_back(machine, values_of(dtype, count, seed));
          // One does not begin where a chunk may.
          const std::size_t shift = inputs == 5 && i == 1 ? size_of(dtype) : 0;
          pointers.push_back(values[i].at(shift));
          addresses.push_back(values[i].address(shift));
        }
        Reduction reduction{.dtype = dtype, .op = op};
        if (inputs != 2) reduction.prescale = 0.75;
        if (inputs != 1) reduction.final = {1.5, 3.0};
        Bytes expected(count * size_of(dtype));
        const SharedBytes reduced(machine, count * size_of(dtype));
        best_kernels().reduce(expected.data(), pointers, count, reduction, Store::Regular);
        const Traffic traffic = inputs % 2 == 0 ? Traffic::Local : Traffic::Link;
        machine.kernels.reduce(machine.stream, reduced.address(), addresses, count, reduction,
                               traffic);
        machine.finish();
        CHECK(reduced.equals(expected));
      }
    }
  }
}

/// So many elements that each of the 32 blocks of a link has more than four tiles, and a tail.
std::size_t large_count(std::size_t width) {
  return 150 * kernels::kTileBytes / width + 3;
}

TEST_CASE("cuda reductions of many inputs by loads at once have the bits of those on the CPU") {
  Machine machine;
  for (const DataType dtype : kGpuDataTypes) {
    const std::size_t count = large_count(size_of(dtype));
    std::vector<SharedBytes> values;
    std::vector<const void*> pointers;
    std::vector<DevicePointer> addresses;
    for (unsigned i = 0; i < 8; ++i) {
      values.emplace_back(machine, values_of(dtype, count, i));
      pointers.push_back(values[i].at(0));
      addresses.push_back(values[i].address());
    }
    const SharedBytes reduced(machine, count * size_of(dtype));
    Bytes expected(count * size_of(dtype));
    const auto check_first = [&](std::size_t inputs, const Reduction& reduction) {
      CAPTURE(to_string(dtype), inputs, reduction.prescale, reduction.final.divisor);
      best_kernels().reduce(expected.data(), {pointers.data(), inputs}, count, reduction,
                            Store::Regular);
      machine.kernels.reduce(machine.stream, reduced.address(), {addresses.data(), inputs}, count,
                             reduction, Traffic::Link);
      machine.finish();
      CHECK(reduced.equals(expected));
    };
    for (const std::size_t inputs : {2U, 4U, 7U, 8U}) {
      check_first(inputs, {.dtype = dtype});
      check_first(inputs, {.dtype = dtype, .prescale = 0.75, .final = {0.5, 1.0}});
      check_first(inputs, {.dtype = dtype, .final = {1.0, 3.0}});
    }
  }
}

TEST_CASE("cuda reductions of any number of inputs in one buffer have the bits of the CPU's") {
  Machine machine;
  for (const DataType dtype : {DataType::F32, DataType::BF16, DataType::I16}) {
    for (const std::size_t inputs : {1U, 2U, 4U, 8U, 64U, 65U, 70U}) {
      const std::size_t count = inputs > 8 ? 300 : 20000;
      const std::size_t stride = count * size_of(dtype) + 16;  // more than what is reduced
      CAPTURE(to_string(dtype), inputs);
      const SharedBytes values(machine, values_of(dtype, inputs * stride / size_of(dtype), 3));
      std::vector<const void*> pointers;
      for (std::size_t i = 0; i < inputs; ++i) pointers.push_back(values.at(i * stride));
      const Reduction reduction{.dtype = dtype, .prescale = 0.5};
      Bytes expected(count * size_of(dtype));
      best_kernels().reduce(expected.data(), pointers, count, reduction, Store::Regular);
      std::vector<DevicePointer> addresses;
      for (std::size_t i = 0; i < inputs; ++i) addresses.push_back(values.address(i * stride));
      machine.kernels.reduce(machine.stream, values.address(), addresses, count, reduction);
      machine.finish();
      CHECK(values.equals(expected));
    }
  }
  CHECK_THROWS_WITH(
      machine.kernels.reduce(machine.stream, 0, std::vector<DevicePointer>(65), 1, {}),
      "a kernel takes 64 inputs at most, or more at equal distances, not 65");
}

/// Segments of these counts, one behind the other on one side, with gaps on the other.
struct Layout {
  std::vector<std::size_t> counts = {5, 8192, 0, 1, 8200, 300, 32800, 3, 70001};
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
  for (const DataType from : kGpuDataTypes) {
    for (const DataType to : kGpuDataTypes) {
      const auto is_full = [](DataType dtype) {
        return dtype == DataType::F32 || dtype == DataType::F64;
      };
      const bool is_between = (is_half(from) && is_full(to)) || (is_full(from) && is_half(to));
      if (from == to || is_between) all.push_back({from, to});
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
        const SharedBytes source(machine, values_of(from, layout.spread_total(), 5));
        const SharedBytes packed(machine, layout.total * size_of(to));
        Bytes expected(layout.total * size_of(to));
        std::vector<KernelSet::Move> moves;
        for (std::size_t i = 0; i < layout.counts.size(); ++i) {
          std::byte* const input = source.at(layout.spread[i] * size_of(from));
          const std::size_t offset = layout.packed[i] * size_of(to);
          moves.push_back({input, packed.at(offset), layout.counts[i]});
          convert(expected.data() + offset, input, layout.counts[i], {from, to}, scaling);
        }
        machine.kernels.move(machine.stream, moves,
                             {.from = from,
                              .to = to,
                              .scaling = scaling,
                              .canonical = true,
                              .traffic = gap == 0 ? Traffic::Local : Traffic::Link});
        machine.finish();
        CHECK(packed.equals(expected));
      }
    }
  }
}

TEST_CASE("cuda copies of large segments by loads at once have the bits of the CPU's conversions") {
  Machine machine;
  for (const auto& [from, to] : pairs()) {
    CAPTURE(to_string(from), to_string(to));
    const std::size_t count = large_count(std::max(size_of(from), size_of(to)));
    const SharedBytes source(machine, values_of(from, count, 9));
    const SharedBytes target(machine, count * size_of(to));
    Bytes expected(count * size_of(to));
    const std::vector<KernelSet::Move> moves = {{source.at(0), target.at(0), count}};
    for (const Scaling& scaling : {Scaling{}, Scaling{0.3, 7.0}}) {
      convert(expected.data(), source.at(0), count, {from, to}, scaling);
      machine.kernels.move(machine.stream, moves,
                           {.from = from,
                            .to = to,
                            .scaling = scaling,
                            .canonical = true,
                            .traffic = Traffic::Link});
      machine.finish();
      CHECK(target.equals(expected));
    }
  }
}

TEST_CASE("cuda segments that only move keep their bits, and those without a source are neutral") {
  Machine machine;
  const Bytes values = values_of(DataType::F32, 9000, 3);
  const SharedBytes source(machine, values);
  const SharedBytes target(machine, 10000 * 4);
  const std::vector<KernelSet::Move> moves = {{source.at(0), target.at(0), 9000},
                                              {nullptr, target.at(36000), 1000}};
  machine.kernels.move(machine.stream, {moves.data(), 1}, {});
  machine.finish();
  CHECK(target.equals({values.begin(), values.begin() + 36000}));  // NaNs, too
  for (const ReduceOp op : kOps) {
    machine.kernels.move(machine.stream, moves, {.op = op});
    machine.finish();
    float value = -1;
    std::memcpy(&value, target.at(36000 + 999 * 4), sizeof(value));
    float expected = 0;
    best_kernels().reduce(&expected, {}, 1, {.dtype = DataType::F32, .op = op}, Store::Regular);
    CHECK(value == expected);
  }
}

}  // namespace
