// SPDX-License-Identifier: Apache-2.0
// Reducescatter on whole runtimes; its types, ops, forms and sizes are those of the oracle:
// tests/sweeps/oracle and tests/jobs/collectives_test.cc.
#include <catch2/catch.hpp>
#include <numeric>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

using namespace ronde;
using namespace ronde::test;

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
