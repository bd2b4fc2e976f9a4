// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/frozen_schedule.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>

#include "tests/core/agree/plain_board.h"
#include "tests/core/agree/submissions.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Thaw = FrozenSchedule::Thaw;
using Clock = MonotonicClock;
using Intake = Agreement::Intake;

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
  SubmissionQueue queue{std::chrono::hours(1), 100, [] {}, events};
  FrozenSchedule schedule{board, 0, 2, std::chrono::hours(0), events, queue.mutex()};

  Fixture() { queue.ask_first(&schedule); }

  void freeze(const std::vector<std::string>& names, std::vector<Submission> earlier = {}) {
    queue.hand_over([&] {
      schedule.freeze(plan(names), Clock::now());
      return std::move(earlier);
    });
  }
  /// The loop has something to take.
  bool has_news() const {
    const auto due = schedule.due();
    return due && *due == TimePoint();
  }

  static FrozenSchedule::Plan plan(const std::vector<std::string>& names) {
    FrozenSchedule::Plan plan;
    plan.patience = kPatience;
    for (const std::string& name : names) {
      plan.buckets.push_back({FrozenSchedule::Item{submission(name).key.spec}});
    }
    return plan;
  }
};

/// Waits, but not long.
void wait_for(const Submission& waited) {
  const auto now = Clock::now();
  CHECK_FALSE(waited.work->wait_until(now));
}

}  // namespace

TEST_CASE(
    "a wait from before the freeze thaws the schedule only if something has to be submitted "
    "first") {
  for (const std::string name : {"first", "second"}) {
    Fixture fixture;
    const Submission waited = submitted(name);
    wait_for(waited);
    fixture.freeze({"first", "second"}, {waited});
    CHECK(fixture.has_news() == (name == "second"));
    if (name == "first") {
      CHECK(fixture.schedule.is_frozen());
      continue;
    }
    const auto remains = fixture.schedule.take().remains;
    REQUIRE(remains);
    CHECK(remains->reason == Thaw::Wait);
    REQUIRE(remains->submissions.size() == 1);
    CHECK(remains->submissions[0].key.text() == waited.key.text());
  }
}

TEST_CASE("a schedule without a limit waits for late peers") {
  Fixture fixture;
  fixture.freeze({"first", "second"}, {submitted("first")});
  const auto later = Clock::now() + 3 * kPatience;
  while (Clock::now() < later) fixture.schedule.inspect(Clock::now());
  CHECK_FALSE(fixture.has_news());
}

TEST_CASE("a caller that waits is awake for its peers before they can start its bucket") {
  Fixture fixture;
  fixture.freeze({"first"});
  std::vector<std::pair<Board::Sleep, std::uint64_t>> said;  // and what the arrival word was then
  std::atomic<std::uint64_t>& word = fixture.board.words()[1].value;
  fixture.board.on_asleep = [&](Board::Sleep sleep) { said.emplace_back(sleep, word.load()); };
  Submission waited = submitted("first");
  waited.start.caller_waits = true;
  CHECK(fixture.schedule.put(waited) == Intake::Taken);
  CHECK(said == std::vector{std::pair{Board::Sleep::None, std::uint64_t{0}}});
  CHECK(word.load() != 0);
}

namespace {

/// The other rank of a Fixture.
struct Peer {
  explicit Peer(Fixture& fixture)
      : schedule(fixture.board, 1, 2, std::chrono::hours(0), fixture.events, mutex) {}

  std::mutex mutex;
  FrozenSchedule schedule;
};

}  // namespace

TEST_CASE("after a thaw, buckets that all ranks have filled run before the rest is given back") {
  Fixture fixture;
  Peer peer(fixture);
  for (FrozenSchedule* schedule : {&peer.schedule, &fixture.schedule}) {
    schedule->freeze(Fixture::plan({"first", "second", "third"}), Clock::now());
    for (const std::string name : {"third", "second"}) {
      Submission filled = submitted(name);
      CHECK(schedule->put(filled) != Intake::Deviates);
    }
  }
  Submission alone = submitted("first");
  CHECK(fixture.schedule.put(alone) == Intake::Taken);
  CHECK(fixture.schedule.take().bucket.empty());
  peer.schedule.thaw(Thaw::Shutdown);
  for (const std::string name : {"second", "third"}) {
    const FrozenSchedule::Next next = fixture.schedule.take();
    REQUIRE(next.bucket.size() == 1);
    CHECK(next.bucket[0].spec().name == name);
    CHECK_FALSE(next.remains);
    CHECK_FALSE(next.is_last);
  }
  const FrozenSchedule::Next next = fixture.schedule.take();
  CHECK(next.bucket.empty());
  CHECK(next.is_last);
  REQUIRE(next.remains);
  REQUIRE(next.remains->submissions.size() == 1);
  CHECK(next.remains->submissions[0].spec().name == "first");
}

TEST_CASE("the loop wakes peers that sleep, not the thread that submits last") {
  Fixture fixture;
  Peer peer(fixture);
  for (FrozenSchedule* schedule : {&peer.schedule, &fixture.schedule}) {
    schedule->freeze(Fixture::plan({"first"}), Clock::now());
  }
  Submission early = submitted("first");
  CHECK(peer.schedule.put(early) == Intake::Taken);
  fixture.board.peers_sleep = true;
  Submission late = submitted("first");
  CHECK(fixture.schedule.put(late) == Intake::Due);
  CHECK(fixture.has_news());
  CHECK(fixture.board.notifications == 0);
  CHECK(fixture.schedule.take().bucket.size() == 1);
  CHECK(fixture.board.notifications == 1);
  CHECK(fixture.schedule.take().bucket.empty());
  CHECK(fixture.board.notifications == 1);
}
