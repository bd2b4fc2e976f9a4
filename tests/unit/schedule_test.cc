// SPDX-License-Identifier: Apache-2.0
// Frozen schedules end to end: ranks as threads, each with a Runtime.
#include <algorithm>
#include <catch2/catch.hpp>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "ronde/error.h"
#include "ronde/runtime.h"
#include "tests/support/ranks.h"
#include "tests/support/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Clock = std::chrono::steady_clock;

/// One rank's tensors of a step: tensor i holds rank + i + step.
class Tensors {
 public:
  explicit Tensors(int count) {
    for (int i = 0; i < count; ++i) values_.emplace_back(static_cast<std::size_t>(1 + i % 7));
  }

  Request request(int i, int rank, int step, const std::string& prefix = "t") {
    auto& tensor = values_[static_cast<std::size_t>(i)];
    std::fill(tensor.begin(), tensor.end(), static_cast<float>(rank + i + step));
    return sum_request(tensor, prefix + std::to_string(i));
  }

  void check_sum(int i, int ranks, int step) const {
    const auto expected = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * (i + step));
    for (const float value : values_[static_cast<std::size_t>(i)]) {
      check(value == expected, "the sum of tensor " + std::to_string(i) + " in step " +
                                   std::to_string(step) + " is " + std::to_string(expected) +
                                   ", not " + std::to_string(value));
    }
  }

  int count() const { return static_cast<int>(values_.size()); }

 private:
  std::vector<std::vector<float>> values_;
};

/// Submits all tensors, waits for all, checks them.
void step_of(Runtime& runtime, Tensors& tensors, int rank, int ranks, int step) {
  std::vector<Work> works;
  for (int i = tensors.count(); i-- > 0;) {
    works.push_back(runtime.submit(tensors.request(i, rank, step)));
  }
  for (const Work& work : works) work.wait();
  for (int i = 0; i < tensors.count(); ++i) tensors.check_sum(i, ranks, step);
}

std::uint64_t schedule_counter(const Runtime& runtime, const std::string& name) {
  return counter_of(runtime, "schedule", name);
}

void freeze(Runtime& runtime, Tensors& tensors, int rank, int ranks) {
  const auto limit = Clock::now() + std::chrono::seconds(60);
  const std::uint64_t before = schedule_counter(runtime, "thaws");
  for (int step = 0; schedule_counter(runtime, "freezes") == before; ++step) {
    check(Clock::now() < limit, "the ranks repeat themselves, so they freeze");
    step_of(runtime, tensors, rank, ranks, step);
  }
}

}  // namespace

TEST_CASE("ranks that repeat the same step freeze it and need no more messages") {
  constexpr int kRanks = 3;
  std::latch checked(kRanks);  // a shutdown thaws
  run_group(kRanks, [&](int rank, Runtime& runtime) {
    Tensors tensors(20);
    freeze(runtime, tensors, rank, kRanks);
    // A first step of the schedule, so that decisions on their way have come.
    step_of(runtime, tensors, rank, kRanks, 0);
    const auto messages = counter_of(runtime, "coordinator", "ready_messages");
    for (int step = 0; step < 30; ++step) step_of(runtime, tensors, rank, kRanks, step);
    check(counter_of(runtime, "coordinator", "ready_messages") == messages, "no message was sent");
    check(schedule_counter(runtime, "thaws") == 0, "nothing thawed");
    check(schedule_counter(runtime, "tensors") >= 30 * 20, "the schedule served the tensors");
    const auto buckets = schedule_counter(runtime, "buckets");
    check(buckets >= 30 && buckets <= 40, "all tensors of a step are one bucket");
    checked.arrive_and_wait();
  });
}

TEST_CASE("nothing freezes where that is turned off") {
  Config config = test_config();
  config.freeze_after_steps = 0;
  run_group(
      2,
      [](int rank, Runtime& runtime) {
        Tensors tensors(3);
        for (int step = 0; step < 20; ++step) step_of(runtime, tensors, rank, 2, step);
        const Stats stats = runtime.stats();
        check(std::none_of(stats.begin(), stats.end(),
                           [](const StatsGroup& group) { return group.part == "schedule"; }),
              "there is no schedule");
      },
      config);
}

TEST_CASE("a frozen schedule gives way to whatever any rank does differently") {
  constexpr int kRanks = 3;
  const std::string deviation =
      GENERATE("a new tensor", "another shape", "another op", "a barrier", "no name",
               "nothing to contribute", "a timeout", "fewer tensors");
  CAPTURE(deviation);
  run_group(kRanks, [&](int rank, Runtime& runtime) {
    Tensors tensors(6);
    freeze(runtime, tensors, rank, kRanks);
    for (int round = 0; round < 3; ++round) {
      // Only rank 1 is first with it, the others are in the middle of the next step.
      std::vector<Work> works;
      const int before = rank == 1 ? 0 : 3;
      for (int i = 0; i < before; ++i) works.push_back(runtime.submit(tensors.request(i, rank, 5)));
      std::vector<float> values(3, 1.0F);
      Request request = sum_request(values, "odd");
      if (deviation == "another shape") request.name = "t5";
      if (deviation == "another op") request.op = ReduceOp::Max;
      if (deviation == "no name") request.name.clear();
      if (deviation == "a barrier") request = barrier_request();
      if (deviation == "nothing to contribute") request.contributes = rank == 0;
      if (deviation == "a timeout") request.timeout = std::chrono::seconds(30);
      if (deviation != "fewer tensors") runtime.run(request);
      const float expected = deviation == "another op" || deviation == "nothing to contribute"
                                 ? 1.0F
                                 : static_cast<float>(kRanks);
      if (deviation != "a barrier" && deviation != "fewer tensors") {
        check(values[2] == expected, "the odd one's result");
      }
      for (int i = before; i < 5; ++i) works.push_back(runtime.submit(tensors.request(i, rank, 5)));
      for (const Work& work : works) work.wait();
      for (int i = 0; i < 5; ++i) tensors.check_sum(i, kRanks, 5);
    }
    check(schedule_counter(runtime, "thaws") >= 1, "it thawed");
    for (int step = 0; step < 5; ++step) step_of(runtime, tensors, rank, kRanks, step);
  });
}

TEST_CASE("a wait for what needs something else first thaws instead of hanging") {
  run_group(2, [](int rank, Runtime& runtime) {
    Tensors tensors(8);
    freeze(runtime, tensors, rank, 2);
    const Work first = runtime.submit(tensors.request(0, rank, 1));
    first.wait();  // its bucket waits for seven others
    tensors.check_sum(0, 2, 1);
    check(schedule_counter(runtime, "thaws") == 1, "it thawed");
    std::vector<Work> works;
    for (int i = 1; i < 8; ++i) works.push_back(runtime.submit(tensors.request(i, rank, 1)));
    for (const Work& work : works) work.wait();
    for (int i = 1; i < 8; ++i) tensors.check_sum(i, 2, 1);
  });
}

TEST_CASE("a result that is only polled for comes although its bucket stays incomplete") {
  run_group(2, [](int rank, Runtime& runtime) {
    Tensors tensors(4);
    freeze(runtime, tensors, rank, 2);
    const Work work = runtime.submit(tensors.request(2, rank, 1));
    const auto limit = Clock::now() + std::chrono::seconds(60);
    while (!work.done() && Clock::now() < limit) std::this_thread::yield();
    check(work.done(), "it came");
    tensors.check_sum(2, 2, 1);
    check(schedule_counter(runtime, "thaws") == 1, "after the schedule was given up");
  });
}

TEST_CASE("what depends on an earlier result is not put into one bucket with it") {
  std::latch checked(2);
  run_group(2, [&](int rank, Runtime& runtime) {
    Tensors tensors(3);
    for (int step = 0; step < 40; ++step) {
      for (int i = 0; i < 3; ++i) {
        runtime.run(tensors.request(i, rank, step));
        tensors.check_sum(i, 2, step);
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
    Tensors tensors(2);
    freeze(runtime, tensors, rank, 2);
    if (rank == 0) {
      Request request = tensors.request(0, rank, 1);
      request.timeout = std::chrono::milliseconds(50);
      const Work late = runtime.submit(request);
      const auto limit = Clock::now() + std::chrono::seconds(60);
      while (!late.done() && Clock::now() < limit) std::this_thread::yield();
      check_contains(text_of<UsageError>([&] { late.wait(); }), "timed out on rank 0");
      failed.count_down();
    } else {
      failed.wait();
      text_of<UsageError>([&] { runtime.run(tensors.request(0, rank, 1)); });
    }
    step_of(runtime, tensors, rank, 2, 3);
  });
}

TEST_CASE("a rank that is missing from a frozen schedule is reported and fails the group") {
  Config config = test_config();
  config.stall_warn_s = 0.1;
  config.stall_abort_s = 0.4;
  const inproc::Group group(2);
  std::latch over(2);
  run_ranks(2, [&](int rank) {
    Runtime runtime(options_of(group, rank, config));
    Tensors tensors(2);
    freeze(runtime, tensors, rank, 2);
    if (rank == 0) {
      std::vector<Work> works;
      for (int i = 0; i < 2; ++i) works.push_back(runtime.submit(tensors.request(i, rank, 1)));
      const Death death = death_of([&] { works[0].wait(); });
      check(death.rank == 1, "rank 1 is named: " + death.text);
      check_contains(death.text, "t0");
    }
    over.arrive_and_wait();
  });
}

TEST_CASE("a rank that dies while the schedule is frozen is named") {
  inproc::Group group(3);
  std::latch frozen(3);
  run_ranks(3, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    Tensors tensors(5);
    freeze(runtime, tensors, rank, 3);
    frozen.arrive_and_wait();
    if (rank == 2) {
      group.kill(2);
      return;
    }
    const Death death = death_of([&] {
      for (int step = 0; step < 1'000'000; ++step) step_of(runtime, tensors, rank, 3, step);
    });
    check(death.rank == 2, "rank 2 is named: " + death.text);
  });
}

TEST_CASE("shutdown waits for what a frozen schedule has under way") {
  run_group(2, [](int rank, Runtime& runtime) {
    Tensors tensors(5);
    freeze(runtime, tensors, rank, 2);
    std::vector<Work> works;
    for (int i = 0; i < 5; ++i) works.push_back(runtime.submit(tensors.request(i, rank, 1)));
    runtime.shutdown();
    for (const Work& work : works) check(work.done() && !work.error(), "it was finished");
    for (int i = 0; i < 5; ++i) tensors.check_sum(i, 2, 1);
  });
}
