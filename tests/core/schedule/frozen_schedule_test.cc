// SPDX-License-Identifier: Apache-2.0
#include "core/src/schedule/frozen_schedule.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/src/queue/submission_queue.h"
#include "ronde/log.h"
#include "tests/core/negotiate/submissions.h"
#include "tests/core/schedule/plain_board.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Thaw = FrozenSchedule::Thaw;
using Clock = FrozenSchedule::Clock;

constexpr std::chrono::milliseconds kPatience{1};

/// With a handle that can be waited for.
Submission submitted(const std::string& name) {
  Submission made = submission(name);
  made.work = std::make_shared<WorkState>(name, std::weak_ptr<WaitHelper>(),
                                          std::make_shared<Logger>(LogLevel::Off));
  return made;
}

/// One of two ranks, with a plan of one operation a bucket and no limit for the peer.
struct Fixture {
  PlainBoard board{10};
  EventLog events{16, std::make_shared<Logger>(LogLevel::Off)};
  FrozenSchedule schedule{board, 0, 2, std::chrono::hours(0), events};
  SubmissionQueue queue{std::chrono::hours(1), 100, [] {}, events};

  Fixture() { queue.use(&schedule); }

  static FrozenSchedule::Plan plan(const std::vector<std::string>& names) {
    FrozenSchedule::Plan plan;
    plan.patience = kPatience;
    for (const std::string& name : names) {
      plan.buckets.push_back({{{name, submission(name).meta, {}}, true, true}});
    }
    return plan;
  }
};

/// Waits, but not long.
void wait_for(const Submission& waited) {
  const auto now = Clock::now();
  CHECK_FALSE(waited.work->wait_until(&now));
}

}  // namespace

TEST_CASE("who waited before the schedule froze thaws it only where something has to come first") {
  for (const std::string name : {"first", "second"}) {
    Fixture fixture;
    const Submission waited = submitted(name);
    wait_for(waited);
    fixture.queue.freeze(Fixture::plan({"first", "second"}), {waited});
    CHECK(fixture.schedule.has_news() == (name == "second"));
    if (name == "first") {
      CHECK(fixture.schedule.is_frozen());
      continue;
    }
    const auto remains = fixture.schedule.finish_thaw();
    REQUIRE(remains);
    CHECK(remains->reason == Thaw::Wait);
    REQUIRE(remains->submissions.size() == 1);
    CHECK(remains->submissions[0].key == waited.key);
  }
}

TEST_CASE("who only asks for what something has to come before does not ask for ever") {
  Fixture fixture;
  fixture.queue.freeze(Fixture::plan({"first", "second"}), {submitted("second")});
  const auto limit = Clock::now() + std::chrono::seconds(20);
  while (!fixture.schedule.has_news() && Clock::now() < limit) {
    fixture.schedule.inspect(Clock::now());
  }
  const auto remains = fixture.schedule.finish_thaw();
  REQUIRE(remains);
  CHECK(remains->reason == Thaw::TimeLimit);
}

TEST_CASE("a schedule without a limit waits for late peers") {
  Fixture fixture;
  fixture.queue.freeze(Fixture::plan({"first", "second"}), {submitted("first")});
  const auto later = Clock::now() + 3 * kPatience;
  while (Clock::now() < later) fixture.schedule.inspect(Clock::now());
  CHECK_FALSE(fixture.schedule.has_news());
}

TEST_CASE("a caller that waits is awake for its peers before they can start its bucket") {
  Fixture fixture;
  fixture.queue.freeze(Fixture::plan({"first"}), {});
  std::vector<std::pair<Board::Sleep, std::uint64_t>> said;  // and what the arrival word was then
  std::atomic<std::uint64_t>& word = fixture.board.words()[1].value;
  fixture.board.on_asleep = [&](Board::Sleep sleep) { said.emplace_back(sleep, word.load()); };
  Submission waited = submitted("first");
  waited.request.caller_waits = true;
  CHECK(fixture.schedule.accept(waited) == FrozenSchedule::Intake::Taken);
  CHECK(said == std::vector{std::pair{Board::Sleep::None, std::uint64_t{0}}});
  CHECK(word.load() != 0);
}

TEST_CASE("after a thaw, buckets that all ranks have filled run before the rest is given back") {
  Fixture fixture;
  FrozenSchedule peer(fixture.board, 1, 2, std::chrono::hours(0), fixture.events);
  for (FrozenSchedule* schedule : {&peer, &fixture.schedule}) {
    schedule->freeze(Fixture::plan({"first", "second", "third"}));
    for (const std::string name : {"third", "second"}) {
      Submission filled = submitted(name);
      CHECK(schedule->accept(filled) != FrozenSchedule::Intake::Deviates);
    }
  }
  Submission alone = submitted("first");
  CHECK(fixture.schedule.accept(alone) == FrozenSchedule::Intake::Taken);
  CHECK_FALSE(fixture.schedule.take());
  peer.thaw(Thaw::Shutdown);
  for (const std::string name : {"second", "third"}) {
    CHECK_FALSE(fixture.schedule.finish_thaw());
    const auto bucket = fixture.schedule.take();
    REQUIRE(bucket);
    CHECK(bucket->at(0).request.name == name);
  }
  CHECK_FALSE(fixture.schedule.take());
  const auto remains = fixture.schedule.finish_thaw();
  REQUIRE(remains);
  REQUIRE(remains->submissions.size() == 1);
  CHECK(remains->submissions[0].request.name == "first");
}

TEST_CASE("the loop wakes peers that sleep, not the thread that submits last") {
  Fixture fixture;
  FrozenSchedule peer(fixture.board, 1, 2, std::chrono::hours(0), fixture.events);
  for (FrozenSchedule* schedule : {&peer, &fixture.schedule}) {
    schedule->freeze(Fixture::plan({"first"}));
  }
  Submission early = submitted("first");
  CHECK(peer.accept(early) == FrozenSchedule::Intake::Taken);
  fixture.board.peers_sleep = true;
  Submission late = submitted("first");
  CHECK(fixture.schedule.accept(late) == FrozenSchedule::Intake::Committed);
  CHECK(fixture.schedule.has_news());
  CHECK(fixture.board.notifications == 0);
  CHECK(fixture.schedule.take());
  CHECK(fixture.board.notifications == 1);
  CHECK_FALSE(fixture.schedule.take());
  CHECK(fixture.board.notifications == 1);
}
