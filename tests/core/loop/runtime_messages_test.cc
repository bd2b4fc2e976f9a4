// SPDX-License-Identifier: Apache-2.0
// Send and recv end to end: ranks as threads, each with a Runtime.
#include <catch2/catch.hpp>
#include <deque>
#include <latch>

#include "tests/support/oracle/forms.h"
#include "tests/support/ranks/goes_on.h"
#include "tests/support/ranks/messages_of_ranks.h"
#include "tests/support/ranks/repeated_steps.h"

using namespace ronde;
using namespace ronde::test;

TEST_CASE("messages of every type arrive bit for bit, in chunks where they are large") {
  Config config = test_config();
  config.fusion_bytes = 256;  // and so the fusion buffer
  const std::vector<int> hosts = GENERATE(kOneHost, kLeaderAndOne, kTwoRanks);
  const int ranks = static_cast<int>(hosts.size());
  const auto body = [ranks](int rank, Runtime& runtime) {
    for (const DataType dtype : kAllDataTypes) {
      for (const std::size_t count : {0, 1, 31, 32, 33, 5000}) {
        const Row row = {.kind = Collective::Send,
                         .dtype = dtype,
                         .in_place = count == 32,
                         .width = count,
                         .spread = Spread::Skewed};
        const Place place = {kGlobalSet, runtime.ranks_of(kGlobalSet), rank};
        check_equal(run_row(row, runtime, place), "", "what is wrong");
      }
    }
    const std::uint64_t moved = kAllDataTypes.size() * 5 * 2;
    check(counter_of(runtime, "execution", "tensors") == moved, "both ends of each");
    check(counter_of(runtime, "execution", "skipped_tensors") == kAllDataTypes.size() * 2,
          "what has no elements is matched and moves nothing");
    check_goes_on(runtime);  // which no rank begins before its last message is over
    if (rank == 0) {
      check(counter_of(runtime, "negotiation", "messages") ==
                kAllDataTypes.size() * 6 * static_cast<std::uint64_t>(ranks),
            "every message was matched once");
    }
  };
  run_on(hosts, body, config);
}

TEST_CASE("tags are received in any order, and messages of one tag do not overtake each other") {
  constexpr int kTags = 12;
  run_on(GENERATE(kOneHost, kLeaderAndOne), [](int rank, Runtime& runtime) {
    if (rank == 0) {
      std::deque<std::vector<float>> values;
      std::vector<Work> works;
      for (int i = 0; i < 2 * kTags; ++i) {
        values.push_back({static_cast<float>(i)});
        works.push_back(runtime.submit(send_request(values.back(), 2, i % kTags)));
      }
      for (const Work& work : works) work.wait();
    } else if (rank == 2) {
      for (int tag = kTags; tag-- > 0;) {
        for (const int number : {tag, tag + kTags}) {
          std::vector<float> value(1);
          runtime.submit(recv_request(value, 0, tag)).wait();
          check_equal(value[0], static_cast<float>(number), "the message");
        }
      }
    }
    check_goes_on(runtime);
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
