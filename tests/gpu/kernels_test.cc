// SPDX-License-Identifier: Apache-2.0
// What the kernels compute: the bits of core's loops, which are tested against double precision.
// Here their threads run on the CPU one by one; tests/gpu/hardware runs the same cases on a GPU.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <limits>
#include <numeric>
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

/// Values of several inputs, and how kernels reduce the first ones of them.
struct Inputs {
  void add(SharedBytes& bytes, std::size_t offset = 0) {
    pointers.push_back(bytes.at(offset));
    addresses.push_back(bytes.address(offset));
  }
  void add(Machine& machine, const Bytes& values, std::size_t offset = 0) {
    add(memory.emplace_back(machine, values), offset);
  }

  /// The kernel gives `count` elements the bits of core's loop.
  void check(Machine& machine, std::size_t inputs, std::size_t count, const Reduction& reduction,
             Traffic traffic, bool in_place = false) {
    CAPTURE(to_string(reduction.dtype), to_string(reduction.op), inputs, count);
    CAPTURE(reduction.prescale, reduction.final.factor, reduction.final.divisor);
    Bytes expected(count * size_of(reduction.dtype));
    best_kernels().reduce(expected.data(), {pointers.data(), inputs}, count, reduction,
                          Store::Regular);
    const SharedBytes apart(machine, expected.size());
    const SharedBytes& reduced = in_place ? memory.front() : apart;
    machine.kernels.reduce(machine.stream, reduced.address(), {addresses.data(), inputs}, count,
                           reduction, traffic);
    machine.finish();
    CHECK(reduced.equals(expected));
  }

  std::deque<SharedBytes> memory = {};
  std::vector<const void*> pointers = {};
  std::vector<DevicePointer> addresses = {};
};

/// So many elements that each of the 32 blocks of a link has more than four tiles, and a tail.
std::size_t large_count(std::size_t width) {
  return 150 * kernels::kTileBytes / width + 3;
}

TEST_CASE(
    "cuda reductions have the bits of those on the CPU, also of many inputs by loads at once") {
  Machine machine;
  for (const DataType dtype : kGpuDataTypes) {
    const std::size_t large = std::max(large_count(size_of(dtype)), kCounts[5] + 1);
    Inputs all, odd;  // one of the odd ones does not begin where a chunk may
    for (unsigned i = 0; i < 8; ++i) {
      all.add(machine, values_of(dtype, large, i));
      odd.add(all.memory.back(), i == 1 ? size_of(dtype) : 0);
    }
    for (const ReduceOp op : kOps) {
      for (const std::size_t inputs : {1U, 2U, 3U, 5U}) {
        const std::size_t count =
            kCounts[(inputs + 2 * static_cast<std::size_t>(op)) % kCounts.size()];
        Reduction reduction{.dtype = dtype, .op = op};
        if (inputs != 2) reduction.prescale = 0.75;
        if (inputs != 1) reduction.final = {1.5, 3.0};
        (inputs == 5 ? odd : all)
            .check(machine, inputs, count, reduction,
                   inputs % 2 == 0 ? Traffic::Local : Traffic::Link);
      }
    }
    for (const std::size_t inputs : {2U, 4U, 7U, 8U}) {
      for (const Reduction& reduction :
           {Reduction{.dtype = dtype},
            Reduction{.dtype = dtype, .prescale = 0.75, .final = {0.5, 1.0}},
            Reduction{.dtype = dtype, .final = {1.0, 3.0}}}) {
        all.check(machine, inputs, large_count(size_of(dtype)), reduction, Traffic::Link);
      }
    }
  }
}

TEST_CASE("cuda reductions of any number of inputs in one buffer have the bits of the CPU's") {
  Machine machine;
  for (const DataType dtype : {DataType::F32, DataType::BF16, DataType::I16}) {
    for (const std::size_t inputs : {1U, 2U, 4U, 8U, 64U, 65U, 70U}) {
      const std::size_t count = inputs > 8 ? 300 : 20000;
      const std::size_t stride = count * size_of(dtype) + 16;  // more than what is reduced
      Inputs all;
      all.add(machine, values_of(dtype, inputs * stride / size_of(dtype), 3));
      for (std::size_t i = 1; i < inputs; ++i) all.add(all.memory.front(), i * stride);
      all.check(machine, inputs, count, {.dtype = dtype, .prescale = 0.5}, Traffic::Local, true);
    }
  }
  CHECK_THROWS_WITH(
      machine.kernels.reduce(machine.stream, 0, std::vector<DevicePointer>(65), 1, {}),
      "a kernel takes 64 inputs at most, or more at equal distances, not 65");
}

/// Elements of segments, more than one launch moves.
std::vector<std::size_t> many_counts() {
  std::vector<std::size_t> counts = {5, 8192, 0, 1, 8200, 300, 32800, 3, 70001};
  for (std::size_t i = 0; i < 180; ++i) counts.push_back(i % 13);
  return counts;
}

/// `count` elements on the CPU.
void convert(std::byte* target, const std::byte* source, std::size_t count,
             const KernelSet::How& how) {
  const Kernels& loops = best_kernels();
  if (is_half(how.from) && how.to != how.from) {
    loops.widen(target, source, count, {how.from, how.to, how.scaling}, Store::Regular);
  } else if (is_half(how.to) && how.to != how.from) {
    loops.narrow(target, source, count, {how.to, how.from, how.scaling}, Store::Regular);
  } else {
    const void* const input = source;
    loops.reduce(target, {&input, 1}, count, {.dtype = how.from, .final = how.scaling},
                 Store::Regular);
  }
}

/// Moves segments of these counts from where `gap` elements lie before each of them to one behind
/// the other, with the bits of core's loops.
void check_moves(Machine& machine, const std::vector<std::size_t>& counts, std::size_t gap,
                 const KernelSet::How& how) {
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  CAPTURE(to_string(how.from), to_string(how.to), how.scaling.factor, total, gap);
  const SharedBytes source(machine, values_of(how.from, total + counts.size() * gap, 5));
  Bytes expected(total * size_of(how.to));
  const SharedBytes packed(machine, expected.size());
  std::vector<KernelSet::Move> moves;
  std::size_t at = 0;
  for (const std::size_t count : counts) {
    std::byte* const input = source.at((at + (moves.size() + 1) * gap) * size_of(how.from));
    const std::size_t offset = at * size_of(how.to);
    moves.push_back({input, packed.at(offset), count});
    convert(expected.data() + offset, input, count, how);
    at += count;
  }
  machine.kernels.move(machine.stream, moves, how);
  machine.finish();
  CHECK(packed.equals(expected));
}

TEST_CASE("cuda packs and unpacks segments by one kernel, with the bits of the CPU's conversions") {
  Machine machine;
  int pairs = 0;
  for (const DataType from : kGpuDataTypes) {
    for (const DataType to : kGpuDataTypes) {
      const bool is_between = is_floating(from) && is_floating(to) && is_half(from) != is_half(to);
      if (from != to && !is_between) continue;
      ++pairs;
      const std::size_t count = large_count(std::max(size_of(from), size_of(to)));
      for (const Scaling& scaling : {Scaling{}, Scaling{0.3, 1.0}, Scaling{1.5, 7.0}}) {
        KernelSet::How how{.from = from, .to = to, .scaling = scaling, .canonical = true};
        check_moves(machine, many_counts(), 0, how);
        how.traffic = Traffic::Link;
        for (const std::size_t gap : {64U, 3U}) check_moves(machine, many_counts(), gap, how);
        check_moves(machine, {count}, 0, how);  // loads at once
      }
    }
  }
  CHECK(pairs == 18);
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
