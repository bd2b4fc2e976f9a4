// SPDX-License-Identifier: Apache-2.0
#include "ronde/runtime.h"

#include <catch2/catch.hpp>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

void wait_asleep(const Runtime& runtime) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!runtime.asleep() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  check(runtime.asleep(), "it sleeps");
}

}  // namespace

TEST_CASE("a caller that waits runs the engine's loop itself, which sleeps otherwise") {
  run_group(2, [](int rank, Runtime& runtime) {
    for (int i = 0; i < 200; ++i) {
      std::vector<float> values(10, static_cast<float>(rank + i));
      runtime.run(sum_request(values, "x"));
      check(values[9] == static_cast<float>(2 * i + 1), "the sum of round " + std::to_string(i));
    }
    wait_asleep(runtime);
  });
  // Among several ranks the engine's thread may be awake, by a message or because it was not
  // scheduled since, whenever somebody waits. It is not where nobody else is.
  run_group(1, [](int, Runtime& runtime) {
    wait_asleep(runtime);
    std::vector<float> values(10, 1.0F);
    runtime.run(sum_request(values, "x"));
    check(counter_of(runtime, "coordinator", "driven_by_callers") == 1, "the caller drove");
  });
}

TEST_CASE("several threads of a rank wait at once") {
  run_group(2, [](int rank, Runtime& runtime) {
    run_ranks(4, [&](int thread) {
      for (int i = 0; i < 50; ++i) {
        std::vector<float> values(10, static_cast<float>(rank + thread));
        const Request request = sum_request(values, "of thread " + std::to_string(thread));
        if ((i + thread) % 2 == 0) {
          runtime.run(request);
        } else {
          runtime.submit(request).wait();
        }
        check(values[0] == static_cast<float>(2 * thread + 1), "the sum of thread and round");
      }
    });
  });
}

TEST_CASE("of all that ranks throw, a failed check is shown first, with its place and values") {
  const std::string text = text_of<CheckFailed>([] {
    run_group(3, [](int rank, Runtime& runtime) {
      if (rank == 2) check_equal(rank, 5, "the number");
      // The others are told that rank 2 left.
      runtime.submit(barrier_request()).wait();
    });
  });
  CHECK_THAT(text, Catch::Contains("runtime_test.cc:") &&
                       Catch::EndsWith(": the number is 2 and should be 5"));
}
