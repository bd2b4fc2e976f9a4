// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/schedule_learner.h"

#include <catch2/catch.hpp>
#include <initializer_list>

namespace {

using namespace ronde;
using Seen = ScheduleLearner::Operation;
using Slots = std::vector<std::vector<std::uint32_t>>;

constexpr std::size_t kMostBuckets = 8;

/// An allreduce of `bytes`; slots from 100 on belong to operations without a name.
Seen operation(std::uint32_t slot, std::uint64_t bytes = 10) {
  Seen result;
  result.slot = slot;
  result.is_named = slot < 100;
  result.plan.spec = share(OpSpec());
  result.plan.bytes = bytes;
  return result;
}

std::vector<Seen> operations(std::initializer_list<std::uint32_t> slots) {
  std::vector<Seen> result;
  for (const std::uint32_t slot : slots) result.push_back(operation(slot));
  return result;
}

Slots slots_of(const ScheduleMessage& schedule) {
  Slots slots;
  for (const auto& bucket : schedule.buckets) {
    auto& list = slots.emplace_back();
    for (const ScheduledSlot& item : bucket) list.push_back(item.slot);
  }
  return slots;
}

/// A learner and a clock that ticks once a decision.
class Fixture {
 public:
  explicit Fixture(std::uint64_t steps, std::uint64_t fusion_bytes = 1000)
      : learner(steps, fusion_bytes, kMostBuckets) {}

  std::optional<ScheduleMessage> see(const std::vector<Seen>& decision, bool after_wait = false) {
    now_ += std::chrono::milliseconds(10);
    return learner.observe(decision, after_wait, now_);
  }
  std::optional<ScheduleMessage> see(std::initializer_list<std::uint32_t> slots,
                                     bool after_wait = false) {
    return see(operations(slots), after_wait);
  }

  void pause(std::chrono::seconds time) { now_ += time; }

  ScheduleLearner learner;

 private:
  TimePoint now_;
};

}  // namespace

TEST_CASE("a step that was no part of the pattern does not make ranks patient") {
  Fixture fixture(3);
  fixture.see({9});
  fixture.see({1});
  fixture.pause(std::chrono::seconds(300));
  std::optional<ScheduleMessage> schedule;
  for (int i = 0; i < 20 && !schedule; ++i) {
    fixture.see({1});
    if (!(schedule = fixture.see({1}))) schedule = fixture.see({2});
    if (schedule && schedule->buckets.size() == 1) schedule = {};
  }
  REQUIRE(schedule);
  CHECK(schedule->patience_ms < 2000);
}

TEST_CASE("steps that differ or lack contributions, and a limit of zero steps, make no plan") {
  Fixture fixture(3), other(2), never(0);
  std::vector<Seen> decision = operations({1, 2});
  constexpr std::uint32_t kKinds = ScheduleLearner::kMostParts + 1;
  for (std::uint32_t i = 0; i < 40; ++i) {
    // As many kinds of steps in turns as no pattern has.
    CHECK_FALSE(fixture.see({1, 2, 3 + i % kKinds}));
    decision[1].contributed = i % 2 == 0;
    CHECK_FALSE(other.see(decision));
    CHECK_FALSE(never.see({1}));
  }
}

TEST_CASE("buckets keep to the fusion size and to what can be fused") {
  Fixture fixture(1, 25);
  std::vector<Seen> decision = operations({1, 2, 3, 4});
  OpSpec other;
  other.dtype = DataType::F64;
  decision[1].plan.spec = share(other);
  CHECK_FALSE(fixture.see(decision));
  const auto schedule = fixture.see(decision);
  REQUIRE(schedule);
  CHECK(slots_of(*schedule) == Slots{{1, 3}, {2}, {4}});
}

TEST_CASE("a plan with more buckets than there are words is not made") {
  Fixture fits(1, 0), other(1, 0);  // no fusion
  CHECK_FALSE(fits.see({1, 2, 3, 4, 5, 6, 7, 8}));
  CHECK(fits.see({1, 2, 3, 4, 5, 6, 7, 8}));
  for (int i = 0; i < 5; ++i) CHECK_FALSE(other.see({1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST_CASE("a plan that did not last makes the next one wait longer, and one that did does not") {
  const auto steps_to_plan = [](Fixture& fixture) {
    int steps = 1;
    while (!fixture.see({1}) && steps < 100) ++steps;
    return steps;
  };
  Fixture fixture(2);
  // Operations that no plan can hold restart the count.
  CHECK_FALSE(fixture.see({1}));
  fixture.learner.forget();
  CHECK(steps_to_plan(fixture) == 2);
  fixture.learner.on_thaw(false, 0);
  CHECK(steps_to_plan(fixture) == 4);
  fixture.learner.on_thaw(false, 3);
  CHECK(steps_to_plan(fixture) == 8);
  fixture.learner.on_thaw(false, 1000);
  CHECK(steps_to_plan(fixture) == 2);
}

TEST_CASE("after a wait for an incomplete bucket only what was decided together stays together") {
  Fixture fixture(1);
  CHECK_FALSE(fixture.see({1, 2}));
  fixture.see({3});
  fixture.learner.on_thaw(true, 1);
  std::optional<ScheduleMessage> schedule;
  for (int i = 0; i < 5 && !schedule; ++i) {
    fixture.see({1, 2});
    schedule = fixture.see({3});
  }
  REQUIRE(schedule);
  CHECK(slots_of(*schedule) == Slots{{1, 2}, {3}});
}

TEST_CASE("a learner that begins anew plans with other fusion, or never") {
  Fixture fixture(2, 1000);
  fixture.see({1, 2});
  fixture.learner.restart(2, 10);
  CHECK_FALSE(fixture.see({1, 2}));
  const auto plan = fixture.see({1, 2});
  REQUIRE(plan);
  CHECK(slots_of(*plan) == Slots{{1}, {2}});
  fixture.learner.restart(0, 10);
  for (int step = 0; step < 10; ++step) CHECK_FALSE(fixture.see({1, 2}));
}
