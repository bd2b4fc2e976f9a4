// SPDX-License-Identifier: Apache-2.0
#include "core/src/queue/submission_queue.h"

#include <catch2/catch.hpp>
#include <thread>

#include "ronde/error.h"

namespace {

using namespace ronde;
using Clock = SubmissionQueue::Clock;
using std::chrono::hours;

Submission submission(const std::string& name, std::int64_t elements = 1) {
  Submission made;
  made.request.name = name;
  made.request.shape = {elements};
  made.meta = meta_of(made.request);
  return made;
}

/// A queue that gathers for an hour or 100 bytes, and counts its wakes.
struct Fixture {
  int wakes = 0;
  EventLog events{16, std::make_shared<Logger>(LogLevel::Off)};
  SubmissionQueue queue{hours(1), 100, [this] { ++wakes; }, events};
};

}  // namespace

TEST_CASE("the gather time counts from the first submission") {
  Fixture fixture;
  CHECK_FALSE(fixture.queue.due());
  CHECK(fixture.queue.drain().empty());
  const auto before = Clock::now();
  fixture.queue.push(submission("a"));
  const auto due = fixture.queue.due();
  fixture.queue.push(submission("b"));
  REQUIRE(due);
  CHECK(*due >= before + hours(1));
  CHECK(*due <= Clock::now() + hours(1));
  CHECK(fixture.queue.due() == due);
}

TEST_CASE("only the first submission wakes the coordinator, unless its caller waits") {
  Fixture fixture;
  for (const bool caller_waits : {false, true, false}) {
    const int wakes = fixture.wakes + (caller_waits ? 0 : 1);
    Submission first = submission("a");
    first.request.caller_waits = caller_waits;
    fixture.queue.push(std::move(first));
    CHECK(fixture.wakes == wakes);
    fixture.queue.push(submission("b"));
    CHECK(fixture.wakes == wakes);
    CHECK(fixture.queue.drain().size() == 2);
    for (const std::string name : {"a", "b"}) fixture.queue.release(0, name);
  }
  CHECK(fixture.queue.counters().wakes.get() == static_cast<std::uint64_t>(fixture.wakes));
}

TEST_CASE("a full fusion buffer is due at once and wakes once") {
  Fixture fixture;
  fixture.queue.push(submission("a", 24));
  CHECK(*fixture.queue.due() > Clock::now());
  fixture.queue.push(submission("b", 1));
  CHECK(*fixture.queue.due() <= Clock::now());
  CHECK(fixture.wakes == 2);
  fixture.queue.push(submission("c", 50));
  CHECK(fixture.wakes == 2);
  static_cast<void>(fixture.queue.drain());
  fixture.queue.push(submission("d", 1));
  CHECK(*fixture.queue.due() > Clock::now());
  CHECK(fixture.queue.counters().submitted_bytes.get() == 4 * (24 + 1 + 50 + 1));
}

TEST_CASE("what comes back to the queue is due at once, ahead of what came later") {
  Fixture fixture;
  fixture.queue.push(submission("a"));
  std::vector<Submission> taken = fixture.queue.drain();
  fixture.queue.push(submission("b"));
  fixture.queue.put_back(std::move(taken));
  REQUIRE(fixture.queue.due());
  CHECK(*fixture.queue.due() <= Clock::now());
  const std::vector<Submission> drained = fixture.queue.drain();
  REQUIRE(drained.size() == 2);
  CHECK(drained[0].key == "a");
  CHECK(drained[1].key == "b");
}

TEST_CASE("a waiter makes what is there due at once, and nothing later") {
  Fixture fixture;
  fixture.queue.flush();
  CHECK(fixture.wakes == 0);
  fixture.queue.push(submission("a"));
  fixture.queue.flush();
  fixture.queue.flush();
  CHECK(fixture.wakes == 1);
  CHECK(fixture.queue.counters().flushes.get() == 1);
  CHECK(*fixture.queue.due() <= Clock::now());
  static_cast<void>(fixture.queue.drain());
  fixture.queue.push(submission("b"));
  CHECK(*fixture.queue.due() > Clock::now());
}

TEST_CASE("submissions are drained in their order, with their keys") {
  Fixture fixture;
  for (const std::string name : {"b", "", "a", ""}) fixture.queue.push(submission(name));
  std::vector<std::string> keys;
  for (const Submission& drained : fixture.queue.drain()) keys.push_back(drained.key);
  CHECK(keys == std::vector<std::string>{"b", unnamed_key(0), "a", unnamed_key(1)});
  CHECK(fixture.queue.drain().empty());
}

TEST_CASE("a name is in flight until it is released") {
  Fixture fixture;
  fixture.queue.push(submission("a"));
  CHECK_THROWS_WITH(fixture.queue.push(submission("a")),
                    Catch::Contains("allreduce 'a' is still in flight"));
  static_cast<void>(fixture.queue.drain());
  CHECK_THROWS_AS(fixture.queue.push(submission("a")), UsageError);
  CHECK(fixture.queue.drain().empty());
  fixture.queue.release(0, "a");
  fixture.queue.push(submission("a"));
  CHECK(fixture.queue.drain().size() == 1);
}

TEST_CASE("a closed queue throws its first reason, keeps what it has and takes no more") {
  Fixture fixture;
  fixture.queue.push(submission(""));
  fixture.queue.close(std::make_exception_ptr(UsageError("first")));
  fixture.queue.close(std::make_exception_ptr(UsageError("second")));
  for (const std::string name : {"b", ""}) {
    CHECK_THROWS_WITH(fixture.queue.push(submission(name)), "first");
  }
  CHECK(fixture.queue.counters().submitted.get() == 1);
  CHECK(fixture.queue.drain().size() == 1);
}

TEST_CASE("a detached queue wakes nobody") {
  Fixture fixture;
  fixture.queue.wake();
  CHECK(fixture.wakes == 1);
  fixture.queue.detach();
  fixture.queue.wake();
  fixture.queue.push(submission("a"));
  fixture.queue.flush();
  CHECK(fixture.wakes == 1);
}

TEST_CASE("many threads may push at once, and nothing is lost") {
  Fixture fixture;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 200; ++i) {
        fixture.queue.push(submission(std::to_string(thread) + "." + std::to_string(i)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(fixture.queue.drain().size() == 1600);
}

TEST_CASE("a set takes operations from its opening to its closing") {
  Fixture fixture;
  Submission other = submission("a");
  other.meta.set = 3;
  const auto push = [&] { fixture.queue.push(Submission(other)); };
  CHECK_THROWS_WITH(push(), "allreduce 'a' in process set 3: the set is being removed");
  fixture.queue.open_set(3);
  push();
  CHECK(fixture.queue.close_set(3) == std::vector<std::string>{"allreduce 'a'"});
  other.key = other.request.name = "b";
  CHECK_THROWS_WITH(push(), "allreduce 'b' in process set 3: the set is being removed");
  CHECK_THROWS_AS(fixture.queue.close_set(3), UsageError);
  fixture.queue.push(submission("b"));
  fixture.queue.open_set(3);
  push();
  CHECK(fixture.queue.drain().size() == 3);
}

TEST_CASE("a queue gathers for another time, or more bytes, once it is told to") {
  Fixture fixture;
  fixture.queue.push(submission("a", 26));  // 104 bytes
  REQUIRE(fixture.queue.due());
  CHECK(*fixture.queue.due() <= Clock::now());
  fixture.queue.gather(hours(2), 1000);
  CHECK(*fixture.queue.due() > Clock::now() + hours(1));
}
