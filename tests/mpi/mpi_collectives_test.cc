// SPDX-License-Identifier: Apache-2.0
// The MPI backend against plain MPI, under mpiexec.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "backends/mpi/mpi_backend.h"

namespace {

using ronde::DataType;
using ronde::Operation;
using ronde::ReduceOp;
using ronde::Segment;
using ronde::mpi::MpiBackend;
using ronde::mpi::MpiBackendOptions;
using ronde::mpi::MpiEnvironment;

/// A backend over the real MPI; the test's own calls come from the same thread.
struct World {
  explicit World(const MpiBackendOptions& options = {})
      : backend(MpiEnvironment::of_process(), options),
        rank(MpiEnvironment::of_process()->rank()),
        size(MpiEnvironment::of_process()->size()) {}

  MpiBackend backend;
  int rank;
  int size;
};

void finish(Operation& operation) {
  while (!operation.poll()) {
  }
}

/// The elements of all ranks, one after the other.
template <typename T>
std::vector<T> gather(const World& world, const std::vector<T>& own) {
  std::vector<T> all(own.size() * static_cast<std::size_t>(world.size));
  const int bytes = static_cast<int>(own.size() * sizeof(T));
  MPI_Allgather(own.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, MPI_COMM_WORLD);
  return all;
}

/// Whether `bytes` are equal on every rank.
bool equal_everywhere(const World& world, const void* bytes, std::size_t count) {
  std::vector<char> reference(count);
  std::memcpy(reference.data(), bytes, count);
  MPI_Bcast(reference.data(), static_cast<int>(count), MPI_BYTE, 0, MPI_COMM_WORLD);
  int equal = std::memcmp(reference.data(), bytes, count) == 0 ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &equal, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
  return world.size > 0 && equal == 1;
}

template <typename T>
std::vector<T> random_values(std::size_t count, int seed) {
  std::mt19937 generator(static_cast<unsigned>(seed));
  std::vector<T> values(count);
  for (T& value : values) {
    if constexpr (std::is_floating_point_v<T>) {
      std::normal_distribution<double> normal(0.0, 1.0);
      value = static_cast<T>(normal(generator) * std::exp(8.0 * normal(generator)));
    } else {
      value = static_cast<T>(generator());  // all bits: sums and products overflow
    }
  }
  return values;
}

/// What integers must give, bit for bit; the arithmetic is unsigned, so that it wraps.
template <typename T>
T combine(ReduceOp op, T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return op == ReduceOp::Sum || op == ReduceOp::Max ? a || b : a && b;
  } else {
    switch (op) {
      case ReduceOp::Sum:
        return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
      case ReduceOp::Product:
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      case ReduceOp::Min:
        return std::min(a, b);
      default:
        return std::max(a, b);
    }
  }
}

constexpr std::array kOps = {ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max};
constexpr std::array<std::size_t, 6> kCounts = {1, 2, 7, 1000, 4097, 70'001};

template <typename T>
void allreduce(World& world, std::span<T> data, DataType dtype, ReduceOp op) {
  const Segment segment{data.data(), data.data(), data.size()};
  const auto operation =
      world.backend.allreduce({.segments = {&segment, 1}, .dtype = dtype, .op = op});
  finish(*operation);
}

template <typename T>
void check_integers(World& world, DataType dtype) {
  for (const ReduceOp op : kOps) {
    for (const std::size_t count : kCounts) {
      std::vector<T> data = random_values<T>(count, 100 * world.rank + static_cast<int>(op));
      const std::vector<T> all = gather(world, data);
      allreduce<T>(world, data, dtype, op);
      std::vector<T> expected(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
      for (std::size_t i = count; i < all.size(); ++i) {
        expected[i % count] = combine(op, expected[i % count], all[i]);
      }
      INFO(to_string(dtype) << " " << to_string(op) << " " << count);
      CHECK(data == expected);
    }
  }
}

/// Against a double-precision (long double for f64) oracle.
template <typename T>
void check_floats(World& world, DataType dtype) {
  const double epsilon = std::numeric_limits<T>::epsilon();
  for (const ReduceOp op : kOps) {
    for (const std::size_t count : kCounts) {
      std::vector<T> data = random_values<T>(count, 100 * world.rank + static_cast<int>(op));
      const std::vector<T> all = gather(world, data);
      allreduce<T>(world, data, dtype, op);
      int wrong = 0;
      for (std::size_t i = 0; i < count; ++i) {
        long double exact = all[i];
        long double magnitude = std::fabs(exact);
        for (std::size_t other = i + count; other < all.size(); other += count) {
          const long double value = all[other];
          if (op == ReduceOp::Sum) exact += value;
          if (op == ReduceOp::Product) exact *= value;
          if (op == ReduceOp::Min) exact = std::min(exact, value);
          if (op == ReduceOp::Max) exact = std::max(exact, value);
          magnitude += std::fabs(value);
        }
        if (op == ReduceOp::Product) magnitude = std::fabs(exact);
        const bool exactly = op == ReduceOp::Min || op == ReduceOp::Max;
        const long double tolerance = exactly ? 0.0L : 4.0L * epsilon * magnitude;
        if (!(std::fabs(static_cast<long double>(data[i]) - exact) <= tolerance)) ++wrong;
      }
      INFO(to_string(dtype) << " " << to_string(op) << " " << count);
      CHECK(wrong == 0);
      CHECK(equal_everywhere(world, data.data(), count * sizeof(T)));
    }
  }
}

/// Different on every rank, also in the number of elements.
std::vector<std::size_t> uneven_counts(int ranks, std::size_t scale) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(rank == 1 ? 0 : scale + 3 * static_cast<std::size_t>(rank));
  }
  return counts;
}

void check_allgather(World& world, std::size_t scale, bool in_place) {
  const std::vector<std::size_t> counts = uneven_counts(world.size, scale);
  const auto value = [](int rank, std::size_t i) {
    return static_cast<std::int32_t>(rank * 1'000'000 + static_cast<int>(i));
  };
  const auto own = static_cast<std::size_t>(world.rank);
  std::vector<std::int32_t> expected;
  std::size_t before = 0;
  for (int rank = 0; rank < world.size; ++rank) {
    if (rank == world.rank) before = expected.size();
    for (std::size_t i = 0; i < counts[static_cast<std::size_t>(rank)]; ++i) {
      expected.push_back(value(rank, i));
    }
  }
  std::vector<std::int32_t> output(expected.size(), -1);
  std::vector<std::int32_t> apart(counts[own]);
  std::int32_t* const input = in_place ? output.data() + before : apart.data();
  for (std::size_t i = 0; i < counts[own]; ++i) input[i] = value(world.rank, i);
  const auto operation = world.backend.allgather(
      {.input = input, .output = output.data(), .counts = counts, .dtype = DataType::I32});
  finish(*operation);
  INFO("scale " << scale << (in_place ? " in place" : ""));
  CHECK(output == expected);
}

void check_alltoall(World& world, std::size_t scale) {
  const auto sent = [&](int from, int to) {
    return from == 1 ? 0 : scale + 2 * static_cast<std::size_t>(from + 3 * to);
  };
  const auto value = [](int from, int to, std::size_t i) {
    return static_cast<std::int64_t>(from * 100 + to) << 32 | static_cast<std::int64_t>(i);
  };
  std::vector<std::size_t> send_counts;
  std::vector<std::size_t> receive_counts;
  std::vector<std::int64_t> input;
  std::vector<std::int64_t> expected;
  std::size_t largest = 0;
  for (int other = 0; other < world.size; ++other) {
    send_counts.push_back(sent(world.rank, other));
    receive_counts.push_back(sent(other, world.rank));
    for (std::size_t i = 0; i < send_counts.back(); ++i) {
      input.push_back(value(world.rank, other, i));
    }
    for (std::size_t i = 0; i < receive_counts.back(); ++i) {
      expected.push_back(value(other, world.rank, i));
    }
    for (int to = 0; to < world.size; ++to) largest = std::max(largest, sent(other, to));
  }
  std::vector<std::int64_t> output(expected.size(), -1);
  const auto operation = world.backend.alltoall({.input = input.data(),
                                                 .output = output.data(),
                                                 .send_counts = send_counts,
                                                 .receive_counts = receive_counts,
                                                 .largest_count = largest,
                                                 .dtype = DataType::I64});
  finish(*operation);
  INFO("scale " << scale);
  CHECK(output == expected);
}

void check_reducescatter(World& world, std::size_t scale) {
  const std::vector<std::size_t> counts = uneven_counts(world.size, scale);
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  for (const ReduceOp op : kOps) {
    const auto input = random_values<std::int16_t>(total, 10 * world.rank + static_cast<int>(op));
    const std::vector<std::int16_t> all = gather(world, input);
    std::vector<std::int16_t> reduced(all.begin(), all.begin() + static_cast<long>(total));
    for (std::size_t i = total; i < all.size(); ++i) {
      reduced[i % total] = combine(op, reduced[i % total], all[i]);
    }
    const auto first = std::accumulate(counts.begin(), counts.begin() + world.rank, 0L);
    const std::size_t own = counts[static_cast<std::size_t>(world.rank)];
    const std::vector<std::int16_t> expected(reduced.begin() + first,
                                             reduced.begin() + first + static_cast<long>(own));
    std::vector<std::int16_t> output(own, -1);
    const auto operation = world.backend.reducescatter({.input = input.data(),
                                                        .output = output.data(),
                                                        .counts = counts,
                                                        .dtype = DataType::I16,
                                                        .op = op});
    finish(*operation);
    INFO(to_string(op) << ", scale " << scale);
    CHECK(output == expected);
  }
}

void check_broadcast(World& world, std::size_t count) {
  for (int root = 0; root < world.size; ++root) {
    std::vector<std::uint16_t> expected(count);
    std::iota(expected.begin(), expected.end(), static_cast<std::uint16_t>(root + 1));
    std::vector<std::uint16_t> input = world.rank == root ? expected : std::vector<std::uint16_t>();
    std::vector<std::uint16_t> output(count, 0xffff);
    const Segment segment{input.data(), output.data(), count};
    const auto operation =
        world.backend.broadcast({.segments = {&segment, 1}, .dtype = DataType::BF16, .root = root});
    finish(*operation);
    INFO("root " << root << ", " << count << " elements");
    CHECK(output == expected);
  }
}

}  // namespace

TEST_CASE("integer allreduces equal the oracle bit for bit and wrap") {
  World world;
  check_integers<std::uint8_t>(world, DataType::U8);
  check_integers<std::int8_t>(world, DataType::I8);
  check_integers<std::int16_t>(world, DataType::I16);
  check_integers<std::int32_t>(world, DataType::I32);
  check_integers<std::int64_t>(world, DataType::I64);
  world.backend.close();
}

TEST_CASE("bool allreduces are or and and") {
  World world;
  for (const ReduceOp op : kOps) {
    // All patterns of up to four ranks: element i of rank r is bit r of i.
    std::vector<std::uint8_t> data(16);
    for (std::size_t i = 0; i < 16; ++i) data[i] = (i >> world.rank) & 1;
    allreduce<std::uint8_t>(world, data, DataType::Bool, op);
    for (std::size_t i = 0; i < 16; ++i) {
      bool expected = (i & 1) != 0;
      for (int rank = 1; rank < world.size; ++rank) {
        expected = combine<bool>(op, expected, ((i >> rank) & 1) != 0);
      }
      INFO(to_string(op) << " of pattern " << i);
      CHECK(static_cast<int>(data[i]) == static_cast<int>(expected));
    }
  }
  world.backend.close();
}

TEST_CASE("float allreduces are close to the oracle and equal on every rank") {
  World world;
  check_floats<float>(world, DataType::F32);
  check_floats<double>(world, DataType::F64);
  world.backend.close();
}

TEST_CASE("min and max of NaN and signed zeros are equal on every rank") {
  World world;
  const std::array<float, 6> specials = {std::numeric_limits<float>::quiet_NaN(),
                                         -std::numeric_limits<float>::quiet_NaN(),
                                         0.0F,
                                         -0.0F,
                                         1.0F,
                                         -std::numeric_limits<float>::infinity()};
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
    std::mt19937 generator(static_cast<unsigned>(world.rank));
    std::vector<float> data(10'000);
    for (float& value : data) value = specials[generator() % specials.size()];
    const std::vector<float> all = gather(world, data);
    allreduce<float>(world, data, DataType::F32, op);
    CHECK(equal_everywhere(world, data.data(), data.size() * sizeof(float)));
    int wrong = 0;
    for (std::size_t i = 0; i < data.size(); ++i) {
      bool has_nan = false;
      for (std::size_t j = i; j < all.size(); j += data.size()) {
        has_nan = has_nan || std::isnan(all[j]);
      }
      if (std::isnan(data[i]) != has_nan) ++wrong;
    }
    CHECK(wrong == 0);
  }
  world.backend.close();
}

TEST_CASE("sums are equal on every rank for many sizes and repeat") {
  World world;
  for (int shift = 0; shift <= 21; ++shift) {
    const std::size_t count = (std::size_t{1} << shift) + (shift % 3 == 0 ? 1U : 0U);
    const std::vector<float> input = random_values<float>(count, 1000 * shift + world.rank);
    std::vector<float> first = input;
    std::vector<float> second = input;
    allreduce<float>(world, first, DataType::F32, ReduceOp::Sum);
    allreduce<float>(world, second, DataType::F32, ReduceOp::Sum);
    INFO(count << " elements");
    CHECK(equal_everywhere(world, first.data(), count * sizeof(float)));
    CHECK(std::memcmp(first.data(), second.data(), count * sizeof(float)) == 0);
  }
  world.backend.close();
}

TEST_CASE("chunked collectives give what whole ones give") {
  World world({.max_count = 1000});
  check_integers<std::int32_t>(world, DataType::I32);
  check_floats<float>(world, DataType::F32);
  for (const std::size_t count : {std::size_t{999}, std::size_t{1000}, std::size_t{12'345}}) {
    check_broadcast(world, count);
    check_allgather(world, count, false);
    check_allgather(world, count, true);
    check_alltoall(world, count);
    check_reducescatter(world, count);
  }
  world.backend.close();
}

TEST_CASE("messages cross an alltoall in pairs, and each other, without being mixed up") {
  World world({.max_count = 100});
  const std::vector<std::int64_t> mine = random_values<std::int64_t>(777, world.rank);
  const int next = (world.rank + 1) % world.size;
  const int previous = (world.rank + world.size - 1) % world.size;
  if (next != world.rank) {
    std::vector<std::int64_t> first(777);
    std::vector<std::int64_t> second(55);
    std::vector<std::unique_ptr<Operation>> operations;
    operations.push_back(world.backend.send(
        {.input = mine.data(), .count = 777, .dtype = DataType::I64, .peer = next}));
    check_alltoall(world, 1000);
    operations.push_back(world.backend.send(
        {.input = mine.data(), .count = 55, .dtype = DataType::I64, .peer = next}));
    operations.push_back(world.backend.recv(
        {.output = first.data(), .count = 777, .dtype = DataType::I64, .peer = previous}));
    operations.push_back(world.backend.recv(
        {.output = second.data(), .count = 55, .dtype = DataType::I64, .peer = previous}));
    for (const std::unique_ptr<Operation>& operation : operations) finish(*operation);
    const std::vector<std::int64_t> all = gather(world, mine);
    const auto expected = all.begin() + 777 * previous;
    CHECK(std::equal(first.begin(), first.end(), expected));
    CHECK(std::equal(second.begin(), second.end(), expected));
  }
  world.backend.close();
}

TEST_CASE("alltoall and reducescatter of parts of different lengths") {
  World world;
  for (const std::size_t count : kCounts) {
    check_alltoall(world, count);
    check_reducescatter(world, count);
  }
  world.backend.close();
}

TEST_CASE("broadcast hands the root's elements to all") {
  World world;
  for (const std::size_t count : kCounts) check_broadcast(world, count);
  world.backend.close();
}

TEST_CASE("allgather joins parts of different lengths in rank order") {
  World world;
  for (const std::size_t count : kCounts) {
    check_allgather(world, count, false);
    check_allgather(world, count, true);
  }
  world.backend.close();
}

TEST_CASE("operations in flight may be polled in any order") {
  World world({.max_count = 500});
  constexpr int kOperations = 12;
  std::vector<std::vector<std::int64_t>> data;
  std::vector<std::unique_ptr<Operation>> operations;
  for (int i = 0; i < kOperations; ++i) {
    data.emplace_back(static_cast<std::size_t>(100 + 700 * i), world.rank + i);
    const Segment segment{data.back().data(), data.back().data(), data.back().size()};
    operations.push_back(world.backend.allreduce(
        {.segments = {&segment, 1}, .dtype = DataType::I64, .op = ReduceOp::Sum}));
  }
  std::vector<int> order(kOperations);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(world.rank)));
  for (const int i : order) finish(*operations[static_cast<std::size_t>(i)]);
  const int rank_sum = world.size * (world.size - 1) / 2;
  for (int i = 0; i < kOperations; ++i) {
    const auto& values = data[static_cast<std::size_t>(i)];
    CHECK(std::all_of(values.begin(), values.end(),
                      [&](std::int64_t value) { return value == rank_sum + world.size * i; }));
  }
  world.backend.close();
}
