// SPDX-License-Identifier: Apache-2.0
// Several buckets in progress at once, over backends that take so many.
#include <algorithm>
#include <catch2/catch.hpp>
#include <latch>

#include "tests/support/fakes/overlapping_backend.h"
#include "tests/support/ranks/faulty_group.h"
#include "tests/support/ranks/results_of_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr int kRanks = 3;

/// Without fusion: a bucket a tensor.
Config unfused() {
  Config config = test_config();
  config.fusion_bytes = 0;
  return config;
}

/// A group whose backends say that they take so many operations, and hold their ends.
struct HeldGroup : FaultyGroup {
  explicit HeldGroup(std::size_t in_flight) : FaultyGroup(kRanks) {
    for (const auto& fault : faults) {
      fault->change_capabilities(
          [in_flight](Capabilities& can) { can.operations_in_flight = in_flight; });
      fault->hold_ends();
    }
  }
  Faults& of(int rank) const { return *faults[static_cast<std::size_t>(rank)]; }
};

/// Sums of so many tensors, under names of their own.
struct Sums {
  Sums(Runtime& runtime, int tensors) {
    values.resize(static_cast<std::size_t>(tensors));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i].assign(i + 1, 1.0F);
      works.push_back(runtime.submit(sum_request(values[i], "x" + std::to_string(i))));
    }
  }

  void check_results() {
    for (std::size_t i = works.size(); i-- > 0;) {
      works[i].wait();
      check(values[i] == std::vector<float>(i + 1, kRanks), "a sum");
    }
  }

  std::vector<std::vector<float>> values;
  std::vector<Work> works;
};

/// Most buckets that were in progress at once.
int most_in_progress(const std::vector<Event>& events) {
  int now = 0;
  int most = 0;
  for (const Event& event : events) {
    if (event.kind == EventKind::Started) most = std::max(most, ++now);
    if (event.kind == EventKind::Finished) --now;
  }
  return most;
}

}  // namespace

TEST_CASE("buckets start while earlier ones are in progress, as many as the backend takes") {
  for (const std::size_t in_flight : {1U, 2U, 3U}) {
    const HeldGroup all(in_flight);
    run_ranks(kRanks, [&](int rank) {
      Runtime runtime(all.options(rank, unfused()));
      const auto begin = std::chrono::steady_clock::now();
      Sums sums(runtime, 8);
      all.of(rank).wait_begun(static_cast<int>(in_flight));
      all.of(rank).release();
      sums.check_results();
      check_equal(most_in_progress(runtime.recent_events()), static_cast<int>(in_flight),
                  "in progress");
      const auto passed = std::chrono::duration_cast<std::chrono::microseconds>(
          std::chrono::steady_clock::now() - begin);
      // Time in which several are in progress counts once.
      check(
          counter_of(runtime, "execution", "busy_us") <= static_cast<std::uint64_t>(passed.count()),
          "busy no longer than the test took");
      runtime.shutdown();
    });
  }
}

TEST_CASE("a backend that fails in one of several operations ends the group") {
  for (const bool at_start : {false, true}) {
    const HeldGroup all(3);
    const std::string text = "the cable is cut";
    std::latch submitted(kRanks);
    if (at_start) all.of(1).fail_start(3, text);
    const std::vector<Death> deaths = on_each_rank(kRanks, [&](int rank) {
      Runtime runtime(all.options(rank, unfused()));
      // A group that is over refuses more: the third starts when all ranks have submitted it.
      Sums sums(runtime, at_start ? 3 : 8);
      submitted.arrive_and_wait();
      if (!at_start && rank == 1) {
        all.of(rank).wait_begun(3);
        all.of(rank).fail_poll(2, text);
      }
      const Death death = death_of([&] { sums.works.front().wait(); });
      for (const Work& work : sums.works) {
        check(death_of([&] { work.wait(); }) == death, "all end alike");
      }
      check(all.of(rank).aborted(), "the backend was told");
      return death;
    });
    check_same_death(deaths, 1, {text});
  }
}

TEST_CASE("the timeout of a bucket behind another one that is in progress is kept") {
  const HeldGroup all(2);
  std::latch begun(kRanks);  // as all are to submit the other one within its timeout
  const std::vector<Death> deaths = on_each_rank(kRanks, [&](int rank) {
    Runtime runtime(all.options(rank, unfused()));
    std::vector<float> first(4, 1.0F);
    std::vector<float> second(4, 1.0F);
    const Work before = runtime.submit(sum_request(first, "patient"));
    all.of(rank).wait_begun(1);
    begun.arrive_and_wait();
    Request request = sum_request(second, "hasty");
    request.timeout = std::chrono::seconds(5);
    const Work behind = runtime.submit(std::move(request));
    const Death death = death_of([&] { behind.wait(); });
    check(death_of([&] { before.wait(); }) == death, "both end alike");
    return death;
  });
  CHECK(deaths[0] == deaths[1]);
  CHECK_THAT(deaths[0].text, Catch::Contains("hasty") && Catch::Contains("within its timeout"));
}

TEST_CASE("an adasum has the backend to itself, before and behind others") {
  const inproc::Group group(kRanks);
  constexpr std::size_t kElements = 1000;
  run_ranks(kRanks, [&](int rank) {
    RuntimeOptions options = options_of(group, rank, unfused());
    options.backends["inproc"] =
        overlapping_factory(group.backend_factory(), static_cast<std::uint64_t>(rank));
    Runtime runtime(std::move(options));
    std::vector<float> values(kElements, 1.0F);
    Request request = sum_request(values, "adasum");
    request.op = ReduceOp::Adasum;
    for (int step = 0; step < 20; ++step) {
      Sums before(runtime, 5);
      const Work adasum = runtime.submit(request);
      before.check_results();
      adasum.wait();
      check(values == std::vector<float>(kElements, 1.0F), "the average of equal vectors");
    }
    int now = 0;
    int most = 0;
    bool runs = false;
    for (const Event& event : runtime.recent_events()) {
      if (event.kind == EventKind::Started) {
        most = std::max(most, ++now);
        const bool is_adasum = event.bytes == kElements * sizeof(float);
        check(!runs && (!is_adasum || now == 1), "nothing runs beside an adasum");
        runs = is_adasum;
      } else if (event.kind == EventKind::Finished) {
        --now;
        runs = false;
      }
    }
    check(most > 1, "others run side by side");
    runtime.shutdown();
  });
}
