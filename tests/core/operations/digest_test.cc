// SPDX-License-Identifier: Apache-2.0
// The ranks compare Request::digest in each operation, negotiated or frozen, and run it either way.
#include <catch2/catch.hpp>
#include <latch>

#include "tests/support/ranks/repeated_steps.h"

using namespace ronde;
using namespace ronde::test;

namespace {

/// Sums over the ranks, of which `joined` have joined, and says whether their digests agree.
bool agrees(Runtime& runtime, const std::string& name, std::uint64_t digest, int joined = 0) {
  std::vector<float> values(2, 1.0F);
  Request request = sum_request(values, name);
  request.digest = digest;
  const Work work = runtime.submit(request);
  work.wait();
  check_equal(values[0], static_cast<float>(runtime.topology().size - joined), "the sum");
  return work.digests_agree();
}

}  // namespace

TEST_CASE("ranks see alike whether the digests of an operation differ, and the operation runs") {
  const std::string name = GENERATE("x", "");
  const std::vector<int> hosts = GENERATE(std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 1});
  Config config = test_config();
  config.freeze_after_steps = 0;
  run_on(
      hosts,
      [&](int rank, Runtime& runtime) {
        for (std::uint64_t step = 1; step < 10; ++step) {
          check(agrees(runtime, name, step), "equal digests agree");
          for (int odd = 0; odd < 3; ++odd) {
            check(!agrees(runtime, name, rank == odd ? step + 1 : step), "one is different");
          }
          check(agrees(runtime, name, rank == 1 ? 0 : step), "a rank without a digest");
          check(agrees(runtime, name, 0), "no digest");
        }
      },
      config);
}

TEST_CASE(
    "the digest of a group is that of all its members, and ranks that have joined have none") {
  run_group(3, [](int rank, Runtime& runtime) {
    for (std::uint64_t step = 1; step < 6; ++step) {
      const bool differs = step % 2 == 0;
      std::vector<float> a(2, 1.0F), b(3, 2.0F);
      std::vector<Request> requests = {sum_request(a, "a"), sum_request(b, "b")};
      requests[0].digest = 1;
      requests[1].digest = differs && rank == 1 ? step + 1 : step;
      for (const Work& work : runtime.submit_group(requests)) {
        work.wait();
        check(work.digests_agree() != differs, "the group's digests are compared");
      }
      check_equal(b[2], 6.0F, "the sum");
    }
    for (std::uint64_t step = 1; step < 4 && rank > 0; ++step) {
      const bool differs = step == 2;
      check(agrees(runtime, "x", differs && rank == 1 ? 7 : step, 1) != differs, "two go on");
    }
    runtime.run(join_request());
    check(agrees(runtime, "x", 9), "and once all have joined");
  });
}

TEST_CASE("a frozen schedule compares the digests of each step without messages or a thaw") {
  constexpr int kRanks = 3;
  std::latch checked(kRanks);  // a shutdown thaws
  run_group(kRanks, [&](int rank, Runtime& runtime) {
    RepeatedSteps steps(runtime, 6);
    // Tensors 2 and 4 have digests from the start, as what a rank submits is compared with them.
    const auto run = [&](int step, int odd) {
      for (int i = 0; i < 6; ++i) {
        Request request = steps.request(i, step);
        const auto lead = static_cast<std::uint64_t>(i == 4 && rank == odd ? 2 : 1);
        if (i == 2 || i == 4) request.digest = (static_cast<std::uint64_t>(step) + lead) << 41;
        steps.pending[i] = runtime.submit(request);
      }
      for (const auto& [i, work] : steps.pending) work.wait();
      return steps.pending[4].digests_agree();
    };
    int step = 0;
    while (schedule_counter(runtime, "freezes") == 0) check(run(step++, -1), "before the freeze");
    for (int round = 0; round < 60; ++round) {
      const int odd = round % 4;  // of no rank, in the last of four rounds
      check_equal(run(step, odd), odd == kRanks, "whether the ranks agree");
      steps.check_sum(5, step++);
    }
    check(schedule_counter(runtime, "thaws") == 0, "nothing thawed");
    checked.arrive_and_wait();
  });
}

TEST_CASE("digests are compared over a thaw and the next freeze") {
  run_group(2, [](int rank, Runtime& runtime) {
    for (int round = 0; round < 6; ++round) {
      const std::uint64_t before = schedule_counter(runtime, "freezes");
      std::uint64_t step = 1;
      const auto next = [&](int lead = 0) {
        return agrees(runtime, "x", (step++ + static_cast<std::uint64_t>(lead)) << 41);
      };
      while (schedule_counter(runtime, "freezes") == before) check(next(), "until the freeze");
      check(!next(rank), "frozen");
      check(next(), "frozen, and equal again");
      std::vector<float> values(2, 1.0F);
      runtime.run(sum_request(values, "odd"));  // thaws
      check(!next(rank), "thawed");
    }
  });
}
