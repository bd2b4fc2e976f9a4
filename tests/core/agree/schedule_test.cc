// SPDX-License-Identifier: Apache-2.0
// Frozen schedules end to end: ranks as threads, each with a Runtime.
#include <catch2/catch.hpp>
#include <deque>
#include <latch>

#include "tests/support/harness/captured_errors.h"
#include "tests/support/ranks/repeated_steps.h"

using namespace ronde;
using namespace ronde::test;

TEST_CASE("patterns that repeat an operation freeze, with and without names") {
  using Pattern = std::vector<std::pair<std::string, std::size_t>>;  // names and sizes
  const Pattern pattern = GENERATE(Pattern{{"critic", 3}, {"critic", 3}, {"actor", 5}},
                                   Pattern{{"a", 1}, {"a", 1}, {"a", 1}, {"a", 1}, {"b", 2}},
                                   Pattern{{"", 3}, {"", 3}, {"", 5}},
                                   Pattern{{"", 3}, {"named", 4}, {"", 3}, {"named", 4}, {"", 2}});
  std::latch checked(3);  // a shutdown thaws
  run_group(3, [&](int rank, Runtime& runtime) {
    const auto run_rounds = [&](int count) {
      for (int round = 0; round < count; ++round) {
        for (const auto& [name, size] : pattern) {
          std::vector<float> values(size, static_cast<float>(rank + round));
          runtime.run(sum_request(values, name));
          check_equal(values, std::vector<float>(size, static_cast<float>(3 + 3 * round)), name);
        }
      }
    };
    run_rounds(40);
    const auto messages = counter_of(runtime, "coordinator", "ready_messages");
    const auto thaws = schedule_counter(runtime, "thaws");
    run_rounds(30);
    check(counter_of(runtime, "coordinator", "ready_messages") == messages, "no message was sent");
    check(schedule_counter(runtime, "thaws") == thaws, "nothing thawed");
    check(schedule_counter(runtime, "tensors") >= 30 * pattern.size(), "the schedule served them");
    checked.arrive_and_wait();
  });
}

TEST_CASE("groups freeze, with and without names, whatever is in them") {
  const bool has_names = GENERATE(true, false);
  const auto named = [&](const char* name) { return std::string(has_names ? name : ""); };
  constexpr int kRanks = 3;
  std::latch checked(kRanks), ended(kRanks);  // another shape thaws, and so does a shutdown
  run_group(kRanks, [&](int rank, Runtime& runtime) {
    const auto run_round = [&](int round, std::size_t size) {
      const auto own = static_cast<float>(rank + round);
      std::vector<float> first(size, own), second(7, own), rows(2, own), all(6);
      Request gather = sum_request(rows, named("c"));
      gather.kind = Collective::Allgather;
      gather.output = all.data();
      const std::vector<Work> works = runtime.submit_group(
          {sum_request(first, named("b")), gather, sum_request(second, named("a"))});
      std::vector<float> between(2, own);
      runtime.run(sum_request(between, named("between")));
      for (const Work& work : works) work.wait();
      std::vector<float> last(3, own);
      for (const Work& work : runtime.submit_group({sum_request(last, named("b"))})) work.wait();
      const auto sum = static_cast<float>(3 + 3 * round);
      check_equal(first, std::vector<float>(size, sum), "the first sum");
      check_equal(second, std::vector<float>(7, sum), "the second sum");
      check_equal(last, std::vector<float>(3, sum), "the sum of the group of one");
      check_equal(between, std::vector<float>(2, sum), "the sum between the groups");
      const auto at = static_cast<float>(round);
      check_equal(all, std::vector<float>{at, at, at + 1, at + 1, at + 2, at + 2}, "the rows");
    };
    for (int round = 0; round < 20; ++round) run_round(round, 5);
    const auto messages = counter_of(runtime, "coordinator", "ready_messages");
    const auto tensors = schedule_counter(runtime, "tensors");
    for (int round = 0; round < 30; ++round) run_round(round, 5);
    check(counter_of(runtime, "coordinator", "ready_messages") == messages, "no message was sent");
    check_equal(schedule_counter(runtime, "tensors") - tensors, 5U * 30U, "all were served");
    const auto thaws = schedule_counter(runtime, "thaws");
    checked.arrive_and_wait();
    for (int round = 0; round < 20; ++round) run_round(round, 6);
    check_equal(schedule_counter(runtime, "thaws"), thaws + 1, "thaws for another shape");
    ended.arrive_and_wait();
  });
}

TEST_CASE("groups alike that are under way when a schedule freezes keep their order") {
  constexpr int kRanks = 2;
  constexpr int kAhead = 4;  // that have been submitted and not waited for
  run_group(kRanks, [&](int rank, Runtime& runtime) {
    std::deque<std::pair<std::vector<float>, std::vector<Work>>> flying;
    const auto finish_first = [&](int number) {
      for (const Work& work : flying.front().second) work.wait();
      check_equal(flying.front().first, std::vector<float>(2, static_cast<float>(2 * number + 1)),
                  "the sum of group " + std::to_string(number));
      flying.pop_front();
    };
    constexpr int kGroups = 400;
    for (int number = 0; number < kGroups; ++number) {
      auto& [values, works] = flying.emplace_back();
      values.assign(2, static_cast<float>(number + rank));
      works = runtime.submit_group({sum_request(values, "")});
      if (number >= kAhead) finish_first(number - kAhead);
    }
    while (!flying.empty()) finish_first(kGroups - static_cast<int>(flying.size()));
    check(schedule_counter(runtime, "freezes") > 0, "a schedule was frozen");
  });
}

TEST_CASE("a frozen schedule gives way to whatever any rank does differently") {
  constexpr int kRanks = 3;
  const std::string deviation = GENERATE("a new tensor", "another shape", "another op", "a barrier",
                                         "no name", "nothing to contribute", "a timeout",
                                         "a refusal", "a refusal by a start", "fewer tensors");
  CAPTURE(deviation);
  const bool is_refusal = deviation.starts_with("a refusal");
  run_group(kRanks, [&](int rank, Runtime& runtime) {
    RepeatedSteps steps(runtime, 6);
    steps.freeze();
    for (int round = 0; round < 3; ++round) {
      // Only rank 1 is first with it, the others are in the middle of the next step.
      const int before = rank == 1 ? 0 : 3;
      steps.submit(0, before, 5);
      std::vector<float> values(3, 1.0F);
      Request request = sum_request(values, "odd");
      if (deviation == "another shape") request.name = "t5";
      if (deviation == "another op") request.op = ReduceOp::Max;
      if (deviation == "no name") request.name.clear();
      if (deviation == "a barrier") request = barrier_request();
      if (deviation == "nothing to contribute") request.contributes = rank == 0;
      if (deviation == "a timeout") request.timeout = std::chrono::seconds(30);
      if (is_refusal) {
        // Of a tensor of the schedule, which the others submit as ever.
        request = steps.request(5, 5);
        const PersistentOp sum = runtime.prepare(request);
        if (rank == 1) request.refusal = "cannot";
        const bool starts = rank == 1 && deviation == "a refusal by a start";
        check_contains(
            usage_error_of(starts ? sum.start({.refusal = "cannot"}) : runtime.submit(request)),
            "rank 1: cannot");
      } else if (deviation != "fewer tensors") {
        runtime.run(request);
      }
      const bool is_kept =
          deviation == "another op" || deviation == "nothing to contribute" || is_refusal;
      const float expected = is_kept ? 1.0F : static_cast<float>(kRanks);
      if (deviation != "a barrier" && deviation != "fewer tensors") {
        check(values[2] == expected, "the odd one's result");
      }
      steps.submit(before, 5, 5);
      steps.finish();
    }
    check(schedule_counter(runtime, "thaws") >= 1, "it thawed");
    for (int step = 0; step < 5; ++step) steps.run(step);
  });
}

TEST_CASE("debug logs connections, backends, freezes and thaws, trace all decisions as well") {
  const CapturedErrors errors;
  Config config = test_config();
  config.log_level = GENERATE("info", "debug", "trace");
  run_group(
      2,
      [](int, Runtime& runtime) {
        RepeatedSteps steps(runtime, 6);
        steps.freeze();
        std::vector<float> values(3, 1.0F);
        runtime.run(sum_request(values, "odd"));
      },
      config);
  const std::string text = errors.text();
  if (config.log_level == "info") {
    CHECK(text.empty());
    return;
  }
  CHECK_THAT(text, Catch::Contains("[ronde rank 1] debug: connected by inproc with rank 0 of 2"));
  CHECK_THAT(text, Catch::Contains("backend of cpu buffers: inproc; chosen by "
                                   "RONDE_CPU_BACKEND=auto among inproc (priority"));
  CHECK_THAT(text, Catch::Contains("debug: froze a schedule; operations: 6, buckets: "));
  CHECK_THAT(text, Catch::Contains("an operation was submitted that is not in it; here: "
                                   "allreduce 'odd'\n"));
  const bool has_all = config.log_level == "trace";
  for (const char* part : {"trace: decision 1 of process set 0: ",
                           "trace: bucket of 12 bytes over "
                           "inproc, 1 operation: "
                           "allreduce 'odd'\n"}) {
    CHECK((text.find(part) != std::string::npos) == has_all);
  }
}

TEST_CASE("a result whose bucket stays incomplete is computed once the schedule thaws") {
  const bool polls = GENERATE(false, true);
  run_group(2, [polls](int, Runtime& runtime) {
    RepeatedSteps steps(runtime, 8);
    steps.freeze();
    steps.submit(0, 1, 1);
    if (polls) poll_until_done(steps.pending.at(0));
    steps.finish();  // its bucket waits for seven others
    check(schedule_counter(runtime, "thaws") == 1, "it thawed");
    steps.submit(1, 8, 1);
    steps.finish();
  });
}

TEST_CASE("what depends on an earlier result is not put into one bucket with it") {
  std::latch checked(2);
  run_group(2, [&](int, Runtime& runtime) {
    RepeatedSteps steps(runtime, 3);
    for (int step = 0; step < 40; ++step) {
      for (int i = 0; i < 3; ++i) {
        runtime.run(steps.request(i, step));
        steps.check_sum(i, step);
      }
    }
    check(schedule_counter(runtime, "freezes") == 1, "it froze");
    check(schedule_counter(runtime, "thaws") == 0, "and stayed so");
    checked.arrive_and_wait();
  });
}

TEST_CASE("an operation whose timeout passes while frozen fails alone") {
  std::latch failed(1);
  run_group(2, [&](int rank, Runtime& runtime) {
    RepeatedSteps steps(runtime, 2);
    steps.freeze();
    Request request = steps.request(0, 1);
    if (rank == 0) {
      request.timeout = std::chrono::milliseconds(50);
      const Work late = runtime.submit(request);
      poll_until_done(late);
      check_contains(usage_error_of(late), "timed out on rank 0");
      failed.count_down();
    } else {
      failed.wait();
      text_of<UsageError>([&] { runtime.run(request); });
    }
    steps.run(3);
  });
}

TEST_CASE("a rank that is missing from a frozen schedule is reported and fails the group") {
  Config config = test_config();
  config.stall_warn_s = 0.1;
  config.stall_abort_s = 5.0;
  const inproc::Group group(2);
  std::latch over(2);
  run_ranks(2, [&](int rank) {
    Runtime runtime(options_of(group, rank, config));
    RepeatedSteps steps(runtime, 2);
    steps.freeze();
    if (rank == 0) {
      steps.submit(0, 2, 1);
      const Death death = death_of([&] { steps.finish(); });
      check(death.rank == 1, "rank 1 is named: " + death.text);
      check_contains(death.text, "t0");
    }
    over.arrive_and_wait();
  });
}

TEST_CASE("shutdown waits for what a frozen schedule has under way") {
  run_group(2, [](int, Runtime& runtime) {
    RepeatedSteps steps(runtime, 5);
    steps.freeze();
    steps.submit(0, 5, 1);
    runtime.shutdown();
    for (const auto& [i, work] : steps.pending) check(work.done(), "it was finished");
    steps.finish();
  });
}
