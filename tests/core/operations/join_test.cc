// SPDX-License-Identifier: Apache-2.0
// Ranks that run out of data at different times. What those that are left reduce, of all types and
// ops, and on several hosts: tests/sweeps/fuzz/random_programs_test.cc.
#include <barrier>
#include <catch2/catch.hpp>
#include <latch>

#include "tests/support/ranks/goes_on.h"
#include "tests/support/ranks/sets_of_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

int join(Runtime& runtime) {
  const Work work = runtime.submit(join_request());
  work.wait();
  return work.last_rank();
}

}  // namespace

TEST_CASE("barriers and groups go on without the ranks that have joined") {
  run_group(3, [](int rank, Runtime& runtime) {
    if (rank > 0) {
      runtime.submit(barrier_request()).wait();
      std::vector<float> a(2, 1.0F), b(2, 2.0F);
      for (const Work& work : runtime.submit_group({sum_request(b, "b"), sum_request(a, "a")})) {
        work.wait();
      }
      check(a[1] == 2.0F && b[0] == 4.0F, "the sums of the group");
    }
    check(join(runtime) > 0, "not rank 0");
    check_goes_on(runtime);
  });
}

TEST_CASE("what needs every rank is refused while one has joined, and works afterwards") {
  run_group(3, [](int rank, Runtime& runtime) {
    const auto gather = [&] {
      std::vector<float> mine(1, static_cast<float>(rank));
      std::vector<float> all(3);
      Request request = sum_request(mine, "gather");
      request.kind = Collective::Allgather;
      request.output = all.data();
      runtime.submit(request).wait();
      check(all == std::vector<float>{0, 1, 2}, "what all have");
    };
    gather();
    if (rank > 0) {
      // The slot is known here.
      check_contains(text_of<UsageError>(gather),
                     "allgather 'gather' needs every rank, but rank 0 has joined");
      std::vector<float> values(3);
      Request broadcast = sum_request(values, "b");
      broadcast.kind = Collective::Broadcast;
      check_contains(usage_error_of(runtime.submit(broadcast)), "needs every rank");
      const Request message = rank == 1 ? send_request(values, 2) : recv_request(values, 1);
      check_contains(usage_error_of(runtime.submit(message)),
                     "needs both of its ranks, but rank 0");
      std::vector<float> others(3);
      const std::vector<Work> works = runtime.submit_group({sum_request(others, "a"), broadcast});
      check_contains(usage_error_of(works[0]), "needs every rank");
    }
    join(runtime);
    gather();
    check_goes_on(runtime);
  });
}

TEST_CASE("messages that wait when a rank joins are refused") {
  std::latch submitted(1);
  run_group(2, [&](int rank, Runtime& runtime) {
    if (rank == 0) {
      const std::vector<float> values(1, 1.0F);
      const Work work = runtime.submit(send_request(values, 1));
      submitted.count_down();
      check_contains(usage_error_of(work), "but rank 1 has joined");
    } else {
      submitted.wait();
    }
    join(runtime);
  });
}

TEST_CASE("a disagreement of those that are left names them alone") {
  run_group(3, [](int rank, Runtime& runtime) {
    if (rank < 2) {
      std::vector<float> values(rank == 0 ? 2 : 4);
      const std::string text = usage_error_of(runtime.submit(sum_request(values, "x")));
      check_contains(text, "rank 0: allreduce f32 [2] sum on cpu");
      check_contains(text, "rank 1: allreduce f32 [4] sum on cpu");
      check(text.find("rank 2") == std::string::npos && text.find("ranks") != std::string::npos,
            "rank 2 said nothing");
    }
    join(runtime);
    check_goes_on(runtime);
  });
}

TEST_CASE("joining twice, or submitting after joining, is refused at once") {
  std::barrier refused(2);
  run_group(2, [&](int rank, Runtime& runtime) {
    if (rank == 0) {
      const Work joined = runtime.submit(join_request());
      std::vector<float> values(2);
      for (int again = 0; again < 2; ++again) {
        check_contains(text_of<UsageError>([&] { runtime.submit(sum_request(values, "x")); }),
                       "rank 0: allreduce 'x': this rank has joined");
        check_contains(text_of<UsageError>([&] { runtime.submit(join_request()); }),
                       "rank 0: join: this rank has joined");
      }
      refused.arrive_and_wait();
      joined.wait();
    } else {
      refused.arrive_and_wait();
      join(runtime);
    }
    Request named = join_request();
    named.name = "x";
    check_contains(text_of<UsageError>([&] { runtime.submit(named); }),
                   "no name, no timeout and no refusal");
    check_goes_on(runtime);
  });
}

TEST_CASE("a name that timed out while a rank had joined is free for it afterwards") {
  std::latch timed_out(3);
  run_group(3, [&](int rank, Runtime& runtime) {
    Work joined;
    if (rank == 2) joined = runtime.submit(join_request());
    // Once this is over, rank 0 has heard of the join.
    if (rank != 2) check(sum_in(runtime, kGlobalSet, "before") == 3.0F, "of ranks 0 and 1");
    if (rank == 0) {
      std::vector<float> values(2);
      Request request = sum_request(values, "x");
      request.timeout = std::chrono::milliseconds(10);
      const std::string text = usage_error_of(runtime.submit(request));
      check_contains(text, "it had not been submitted by rank 1;");
    }
    timed_out.arrive_and_wait();
    std::vector<float> values(2);
    if (rank == 1) {
      check_contains(usage_error_of(runtime.submit(sum_request(values, "x"))), "timed out");
    }
    if (rank != 2) joined = runtime.submit(join_request());
    joined.wait();
    check(sum_in(runtime, kGlobalSet) == 6.0F, "the next use is that of all");
  });
}

TEST_CASE("a join thaws a frozen schedule, which freezes again") {
  run_group(2, [](int rank, Runtime& runtime) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int step = 0; step < 10 + 2 * rank; ++step) {
        check(sum_in(runtime, kGlobalSet) == (step < 10 ? 3.0F : 2.0F), "the sum");
      }
      check(join(runtime) == 1, "rank 1 is last");
    }
    check(counter_of(runtime, "schedule", "freezes") >= 3, "frozen in each epoch");
  });
}
