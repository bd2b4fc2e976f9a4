// SPDX-License-Identifier: Apache-2.0
// The MPI backend by itself, under mpiexec: chunks, and operations in flight. What its collectives
// give is for the oracle.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/mpi/mpi_backend.h"
#include "tests/support/processes/own_mpi.h"

namespace {

using namespace ronde;
using namespace ronde::mpi;

/// Returns the environment of an MPI that the program has started: no backend finalises it.
std::shared_ptr<MpiEnvironment> environment() {
  static const bool is_started = [] {
    test::init_mpi(MPI_THREAD_MULTIPLE);
    return std::atexit([] { MPI_Finalize(); }) == 0;
  }();
  REQUIRE(is_started);
  return MpiEnvironment::of_process();
}

/// A backend over the real MPI; the test's own calls come from the same thread.
struct World {
  explicit World(const MpiBackendOptions& options = {})
      : backend(environment(), options), rank(environment()->rank()), size(environment()->size()) {}
  ~World() { backend.close(); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  MpiBackend backend;
  const int rank;
  const int size;
};

using Values = std::vector<std::int32_t>;
using Counts = std::vector<std::size_t>;

/// All bits: sums and products overflow.
Values random_values(std::size_t count, int seed) {
  std::mt19937 generator(static_cast<unsigned>(seed));
  Values values(count);
  for (std::int32_t& value : values) value = static_cast<std::int32_t>(generator());
  return values;
}

void finish(Operation& operation) {
  while (!operation.poll()) {
  }
}

/// Of each rank, or from each to each: different, and nothing of rank 1.
std::size_t uneven(std::size_t count, int from, int to) {
  return from == 1 ? 0 : count + 2 * static_cast<std::size_t>(from + 3 * to);
}

Values allreduce(World& world, ReduceOp op, std::size_t count) {
  Values data = random_values(count, world.rank);
  const Segment segment{data.data(), data.data(), data.size()};
  finish(*world.backend.allreduce({.segments = {&segment, 1}, .dtype = DataType::I32, .op = op}));
  return data;
}

Values broadcast(World& world, int root, std::size_t count) {
  Values input;
  if (world.rank == root) input = random_values(count, root);
  Values output(count, -1);
  const Segment segment{input.data(), output.data(), count};
  finish(
      *world.backend.broadcast({.segments = {&segment, 1}, .dtype = DataType::I32, .root = root}));
  return output;
}

Counts uneven_counts(const World& world, std::size_t count) {
  Counts counts;
  for (int rank = 0; rank < world.size; ++rank) counts.push_back(uneven(count, rank, 0));
  return counts;
}

std::size_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

Values allgather(World& world, bool in_place, std::size_t count) {
  const Counts counts = uneven_counts(world, count);
  const auto own = counts.begin() + world.rank;
  Values output(total(counts), -1);
  const Values apart = random_values(*own, world.rank);
  std::int32_t* const part = output.data() + std::accumulate(counts.begin(), own, std::size_t{0});
  if (in_place) std::ranges::copy(apart, part);
  finish(*world.backend.allgather({.input = in_place ? part : apart.data(),
                                   .output = output.data(),
                                   .counts = counts,
                                   .dtype = DataType::I32}));
  return output;
}

Values alltoall(World& world, std::size_t count) {
  Counts send_counts;
  Counts receive_counts;
  std::size_t largest = 0;
  for (int other = 0; other < world.size; ++other) {
    send_counts.push_back(uneven(count, world.rank, other));
    receive_counts.push_back(uneven(count, other, world.rank));
    for (int to = 0; to < world.size; ++to) largest = std::max(largest, uneven(count, other, to));
  }
  const Values input = random_values(total(send_counts), world.rank);
  Values output(total(receive_counts), -1);
  finish(*world.backend.alltoall({.input = input.data(),
                                  .output = output.data(),
                                  .send_counts = send_counts,
                                  .receive_counts = receive_counts,
                                  .largest_count = largest,
                                  .dtype = DataType::I32}));
  return output;
}

Values reducescatter(World& world, ReduceOp op, std::size_t count) {
  const Counts counts = uneven_counts(world, count);
  const Values input = random_values(total(counts), world.rank);
  Values output(counts[static_cast<std::size_t>(world.rank)], -1);
  finish(*world.backend.reducescatter({.input = input.data(),
                                       .output = output.data(),
                                       .counts = counts,
                                       .dtype = DataType::I32,
                                       .op = op}));
  return output;
}

/// This rank's results of every collective.
std::map<std::string, Values> results(World& world, std::size_t count) {
  std::map<std::string, Values> all;
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max}) {
    all["allreduce " + std::string(to_string(op))] = allreduce(world, op, count);
    all["reducescatter " + std::string(to_string(op))] = reducescatter(world, op, count);
  }
  for (int root = 0; root < world.size; ++root) {
    all["broadcast from " + std::to_string(root)] = broadcast(world, root, count);
  }
  all["allgather"] = allgather(world, false, count);
  all["allgather in place"] = allgather(world, true, count);
  all["alltoall"] = alltoall(world, count);
  return all;
}

}  // namespace

TEST_CASE("chunked collectives give what whole ones give") {
  World whole;
  World chunked({.max_count = 1000});
  for (const std::size_t count : {999U, 1000U, 12'345U}) {
    const std::map<std::string, Values> expected = results(whole, count);
    for (const auto& [name, values] : results(chunked, count)) {
      CAPTURE(name, count);
      CHECK((values == expected.at(name)));
    }
  }
}

TEST_CASE("an alltoall that leaves a rank out keeps later calls in step", "[n3][n4]") {
  World world;
  const auto size = static_cast<std::size_t>(world.size);
  // Ranks 0 and 1 exchange one element; the others pass one address for both buffers.
  Counts counts(size, 0);
  if (world.rank < 2) counts[static_cast<std::size_t>(1 - world.rank)] = 1;
  const Values mine(1, world.rank);
  Values received(1, -1);
  finish(*world.backend.alltoall({.input = world.rank < 2 ? mine.data() : received.data(),
                                  .output = received.data(),
                                  .send_counts = counts,
                                  .receive_counts = counts,
                                  .largest_count = 1,
                                  .dtype = DataType::I32}));
  CHECK(received.front() == (world.rank < 2 ? 1 - world.rank : -1));
  Values sum(1, 1);
  const Segment segment{sum.data(), sum.data(), 1};
  finish(*world.backend.allreduce(
      {.segments = {&segment, 1}, .dtype = DataType::I32, .op = ReduceOp::Sum}));
  CHECK(sum.front() == world.size);
}

TEST_CASE("sums of floats have the same bits each time") {
  World world;
  for (int shift = 0; shift <= 21; ++shift) {
    const std::size_t count = (std::size_t{1} << shift) + (shift % 3 == 0 ? 1U : 0U);
    std::vector<float> first;
    for (const std::int32_t value : random_values(count, 1000 * shift + world.rank)) {
      first.push_back(static_cast<float>(value));
    }
    std::vector<float> second = first;
    for (std::vector<float>* const data : {&first, &second}) {
      const Segment segment{data->data(), data->data(), count};
      finish(*world.backend.allreduce(
          {.segments = {&segment, 1}, .dtype = DataType::F32, .op = ReduceOp::Sum}));
    }
    INFO(count << " elements");
    CHECK((first == second));
  }
}

TEST_CASE("messages cross an alltoall in pairs, and each other, without being mixed up",
          "[n2][n3][n4]") {
  World world({.max_count = 100});
  const Values mine = random_values(777, world.rank);
  const int next = (world.rank + 1) % world.size;
  const int previous = (world.rank + world.size - 1) % world.size;
  Values first(777);
  Values second(55);
  std::vector<std::unique_ptr<Operation>> operations;
  operations.push_back(world.backend.send(
      {.input = mine.data(), .count = 777, .dtype = DataType::I32, .peer = next}));
  const Values exchanged = alltoall(world, 1000);
  operations.push_back(world.backend.send(
      {.input = mine.data(), .count = 55, .dtype = DataType::I32, .peer = next}));
  operations.push_back(world.backend.recv(
      {.output = first.data(), .count = 777, .dtype = DataType::I32, .peer = previous}));
  operations.push_back(world.backend.recv(
      {.output = second.data(), .count = 55, .dtype = DataType::I32, .peer = previous}));
  for (const std::unique_ptr<Operation>& operation : operations) finish(*operation);
  const Values sent = random_values(777, previous);
  CHECK((first == sent));
  CHECK((second == Values(sent.begin(), sent.begin() + 55)));
  World whole;
  CHECK((exchanged == alltoall(whole, 1000)));
}

TEST_CASE("operations in flight may be polled in any order") {
  World world({.max_count = 500});
  constexpr int kOperations = 12;
  std::vector<Values> data;
  std::vector<std::unique_ptr<Operation>> operations;
  for (int i = 0; i < kOperations; ++i) {
    data.emplace_back(static_cast<std::size_t>(100 + 700 * i), world.rank + i);
    const Segment segment{data.back().data(), data.back().data(), data.back().size()};
    operations.push_back(world.backend.allreduce(
        {.segments = {&segment, 1}, .dtype = DataType::I32, .op = ReduceOp::Sum}));
  }
  std::vector<int> order(kOperations);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(world.rank)));
  for (const int i : order) finish(*operations[static_cast<std::size_t>(i)]);
  const int rank_sum = world.size * (world.size - 1) / 2;
  for (int i = 0; i < kOperations; ++i) {
    const Values& values = data[static_cast<std::size_t>(i)];
    CHECK((values == Values(values.size(), rank_sum + world.size * i)));
  }
}
