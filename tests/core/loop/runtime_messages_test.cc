// SPDX-License-Identifier: Apache-2.0
// Send and recv end to end: ranks as threads, each with a Runtime. All types and sizes:
// tests/sweeps and tests/jobs/messages_test.cc.
#include <catch2/catch.hpp>
#include <latch>

#include "tests/support/ranks/goes_on.h"
#include "tests/support/ranks/messages_of_ranks.h"
#include "tests/support/ranks/repeated_steps.h"

using namespace ronde;
using namespace ronde::test;

TEST_CASE("each message is matched once, and one without elements moves nothing") {
  run_on(GENERATE(kOneHost, kLeaderAndOne), [](int rank, Runtime& runtime) {
    std::vector<float> values(5, static_cast<float>(rank));
    for (const std::int64_t count : {0, 5}) {
      Request request = rank == 0 ? send_request(values, 2) : recv_request(values, 0);
      request.shape = {count};
      if (rank != 1) runtime.run(request);
      check(rank != 2 || values[4] == (count == 0 ? 2.0F : 0.0F), "the message");
    }
    for (const char* const counter : {"tensors", "skipped_tensors"}) {
      check_equal(counter_of(runtime, "execution", counter), rank == 1 ? 0U : 1U, counter);
    }
    check_goes_on(runtime);  // which no rank begins before its last message is over
    if (rank == 0) check_equal(counter_of(runtime, "negotiation", "messages"), 2U, "messages");
  });
}

TEST_CASE("a recv from any rank receives from all, each rank's in order, and names the source") {
  constexpr int kEach = 10;
  run_on(GENERATE(kOneHost, kLeaderAndOne), [](int rank, Runtime& runtime) {
    const auto value_of = [](int of, int number) { return static_cast<float>(100 * of + number); };
    const int size = runtime.topology().size;
    for (int i = 0; rank != 1 && i < kEach; ++i) {
      const std::vector<float> value = {value_of(rank, i)};
      runtime.submit(send_request(value, 1, 3)).wait();
    }
    std::vector<int> next(static_cast<std::size_t>(size), 0);
    for (int i = 0; rank == 1 && i < kEach * (size - 1); ++i) {
      std::vector<float> value(1);
      const Work work = runtime.submit(recv_request(value, kAnyRank, 3));
      work.wait();
      check(work.source() >= 0 && work.source() < size && work.source() != 1, "a source");
      int& number = next[static_cast<std::size_t>(work.source())];
      check(value[0] == value_of(work.source(), number++), "the next one of that rank");
    }
    check_goes_on(runtime);
  });
}

TEST_CASE("a source is known only of a recv that has succeeded") {
  std::latch pending(1);
  run_group(2, [&](int rank, Runtime& runtime) {
    std::vector<float> values(1, 1.0F);
    check(Work().source() == -1, "of nothing");
    if (rank == 1) {
      const Work work = runtime.submit(recv_request(values, 0));
      check(text_of<UsageError>([&] { static_cast<void>(work.source()); }) ==
                "recv from rank 0 (tag 0): source() was called while it is pending; wait() first",
            "pending");
      pending.count_down();
      work.wait();
      check(work.source() == 0, "done");
    } else {
      pending.wait();
      const Work sent = runtime.submit(send_request(values, 1));
      sent.wait();
      check(sent.source() == -1, "a send comes from nowhere");
    }
    const Work sum = runtime.submit(sum_request(values, "x"));
    sum.wait();
    check(sum.source() == -1, "an allreduce has none");
    std::vector<float> more(2);
    const Work bad = runtime.submit(rank == 0 ? send_request(values, 1) : recv_request(more, 0));
    check_contains(usage_error_of(bad), "differs");
    check(text_of<UsageError>([&] { static_cast<void>(bad.source()); }) == usage_error_of(bad),
          "the error");
  });
}

TEST_CASE("messages end a frozen schedule, and one that waits keeps ranks from freezing") {
  run_group(3, [&](int rank, Runtime& runtime) {
    RepeatedSteps steps(runtime, 1);
    std::vector<float> value(1);
    for (int round = 0; round < 3; ++round) {
      steps.freeze();
      const int from = round % 2;
      value[0] = static_cast<float>(rank);
      // Rank 2 knows of the thaw only from the words.
      Work work;
      if (rank == from) work = runtime.submit(send_request(value, 1 - from, round));
      if (rank == 1 - from) work = runtime.submit(recv_request(value, from, round));
      steps.run(round);
      work.wait();
      check(rank != 1 - from || value[0] == static_cast<float>(from), "the message");
    }
    check(schedule_counter(runtime, "thaws") >= 2, "messages thawed it");
  });
  run_group(3, [&](int rank, Runtime& runtime) {
    RepeatedSteps steps(runtime, 1);
    std::vector<float> value(1, static_cast<float>(rank));
    Work work;
    if (rank == 1) work = runtime.submit(recv_request(value, kAnyRank));
    for (int step = 0; step < 200; ++step) steps.run(step);
    check(schedule_counter(runtime, "freezes") == 0, "not while it waits");
    if (rank == 0) work = runtime.submit(send_request(value, 1));
    work.wait();
    check(rank == 2 || value[0] == 0.0F, "the message");
    steps.freeze();
  });
}
