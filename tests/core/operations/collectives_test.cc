// SPDX-License-Identifier: Apache-2.0
// What the oracle does not ask of collectives: tests/sweeps/oracle and
// tests/jobs/collectives_test.cc have the product of collectives, types, ops and ranks,
// tests/sweeps/fuzz fuses them.
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

using namespace ronde;
using namespace ronde::test;

TEST_CASE("NaN wins whichever rank has it, integers wrap around, halves are rounded once") {
  constexpr int kRanks = 3;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  struct Row {
    DataType dtype;
    ReduceOp op;
    std::array<double, kRanks> brought;
    double expected;
  };
  const Row rows[] = {{DataType::F16, ReduceOp::Min, {kNan, 5, 5}, kNan},
                      {DataType::BF16, ReduceOp::Max, {5, kNan, 5}, kNan},
                      {DataType::F32, ReduceOp::Sum, {5, 5, kNan}, kNan},
                      {DataType::F32, ReduceOp::Max, {kNan, 5, 5}, kNan},
                      {DataType::F64, ReduceOp::Min, {5, 5, kNan}, kNan},
                      {DataType::U8, ReduceOp::Sum, {200, 200, 0}, 144},
                      {DataType::U8, ReduceOp::Product, {200, 200, 1}, 64},
                      {DataType::I64, ReduceOp::Sum, {-0x1p63, -0x1p63, 0}, 0},
                      // Each single addition of one would be lost.
                      {DataType::F16, ReduceOp::Sum, {2048, 1, 1}, 2050}};
  run_group(kRanks, [&](int rank, Runtime& runtime) {
    for (const Row& row : rows) {
      TensorValues value(row.dtype, 1);
      value.set(0, row.brought[static_cast<std::size_t>(rank)]);
      Request request;
      request.dtype = row.dtype;
      request.op = row.op;
      request.shape = {1};
      request.input = request.output = value.data();
      runtime.submit(request).wait();
      const double got = value.get(0);
      check(std::isnan(row.expected) ? std::isnan(got) : got == row.expected,
            std::string(to_string(row.dtype)) + " " + std::string(to_string(row.op)));
    }
  });
}

TEST_CASE("a barrier ends only once every rank is in it") {
  std::atomic<int> entered{0};
  run_group(4, [&](int, Runtime& runtime) {
    for (int round = 1; round <= 5; ++round) {
      entered.fetch_add(1);
      runtime.submit(barrier_request()).wait();
      check(entered.load() >= 4 * round, "all have entered");
      runtime.submit(barrier_request("named")).wait();
    }
  });
}

TEST_CASE("a broadcast needs no input but that of its root, and in place not even that") {
  run_group(3, [](int rank, Runtime& runtime) {
    for (const bool in_place : {false, true}) {
      const std::vector<float> input(7, 5.0F);
      std::vector<float> output(7, rank == 2 && in_place ? 5.0F : 0.0F);
      Request request = sum_request(output, "b");
      request.kind = Collective::Broadcast;
      request.root = 2;
      request.input = rank == 2 && !in_place ? input.data() : nullptr;
      runtime.run(request);
      check_equal(output, input, "what the root has");
    }
  });
}

TEST_CASE("a broadcast without elements and a gather without rows move nothing") {
  run_group(2, [](int, Runtime& runtime) {
    Request broadcast;
    broadcast.kind = Collective::Broadcast;
    broadcast.shape = {0, 5};
    runtime.submit(broadcast).wait();
    Request gather;
    gather.kind = Collective::Allgather;
    gather.shape = {0, 5};
    std::vector<std::int64_t> shape;
    gather.allocate_output = [&](const std::vector<std::int64_t>& result) {
      shape = result;
      return static_cast<void*>(nullptr);
    };
    runtime.submit(gather).wait();
    check(shape == std::vector<std::int64_t>{0, 5}, "the shape is told all the same");
  });
}
