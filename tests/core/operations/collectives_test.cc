// SPDX-License-Identifier: Apache-2.0
// What the oracle does not ask of collectives: tests/sweeps/oracle and
// tests/jobs/collectives_test.cc have the product of collectives, types, ops and ranks,
// tests/sweeps/fuzz fuses them.
#include <atomic>
#include <catch2/catch.hpp>
#include <numeric>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

using namespace ronde;
using namespace ronde::test;

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

TEST_CASE("a root sends the same memory by several broadcasts at once, as it only reads it") {
  run_group(3, [](int rank, Runtime& runtime) {
    std::vector<float> first(7, rank == 1 ? 5.0F : 0.0F), second(7);
    std::vector<Work> works;
    for (std::vector<float>* const values : {&first, rank == 1 ? &first : &second}) {
      Request request = sum_request(*values, values == &first && works.empty() ? "a" : "b");
      request.kind = Collective::Broadcast;
      request.root = 1;
      works.push_back(runtime.submit(std::move(request)));
    }
    for (const Work& work : works) work.wait();
    check(first == std::vector<float>(7, 5.0F) && (rank == 1 || second == first), "both arrive");
  });
}

TEST_CASE(
    "a part of a reducescatter goes in chunks over the input, to its front or its own place") {
  Config config = test_config();
  config.fusion_bytes = 64;
  const auto body = [](int rank, Runtime& runtime) {
    for (const bool to_front : {true, false}) {
      // Each rank keeps 33 or 34 of 100 rows of three elements.
      const std::size_t first = rank == 0 ? 0 : 99 * static_cast<std::size_t>(rank) + 3;
      std::vector<float> input(300);
      std::iota(input.begin(), input.end(), 10'000.0F * static_cast<float>(rank));
      float* const output = input.data() + (to_front ? 0 : first);
      Request request = sum_request(input, "r");
      request.kind = Collective::Reducescatter;
      request.shape = {100, 3};
      request.output = output;
      runtime.run(request);
      for (std::size_t i = 0; i < (rank == 0 ? 102U : 99U); ++i) {
        check_equal(output[i], 30'000 + 3 * static_cast<float>(first + i), "the sum");
      }
    }
  };
  run_group(3, body, config);
}

TEST_CASE("a rank whose part of a reducescatter has no rows needs no output") {
  run_group(3, [](int rank, Runtime& runtime) {
    std::vector<float> values(2, 1.0F);
    Request request = sum_request(values, "x");
    request.kind = Collective::Reducescatter;
    if (rank == 2) request.output = nullptr;
    runtime.submit(request).wait();
    if (rank < 2) check(values[0] == 3.0F, "the sum");
  });
}
