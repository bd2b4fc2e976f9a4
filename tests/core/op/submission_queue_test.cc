// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/submission_queue.h"

#include <catch2/catch.hpp>
#include <new>

namespace {

using namespace ronde;
using Clock = MonotonicClock;
using std::chrono::hours;

Submission submission(const std::string& name, std::int64_t elements = 1, std::uint32_t set = 0) {
  Submission made;
  Request request;
  request.name = name;
  request.shape = {elements};
  request.set.id = set;
  made.key.spec = share(spec_of(request));
  made.input_bytes = static_cast<std::uint64_t>(elements) * sizeof(float);
  made.submitted = Clock::now();
  return made;
}

/// A queue that gathers for an hour or 100 bytes, and counts its wakes.
struct Fixture {
  int wakes = 0;
  EventLog events{16, std::make_shared<Logger>(LogLevel::Off)};
  SubmissionQueue queue{hours(1), 100, [this] { ++wakes; }, events};

  bool is_due() const { return queue.due() && *queue.due() <= Clock::now(); }
  /// Takes what is there, due or not.
  std::vector<Submission> drain() {
    std::vector<Submission> drained;
    for (Submission& each : queue.take(TimePoint::max())) drained.push_back(std::move(each));
    return drained;
  }
  /// Drains the queue and returns the keys.
  std::vector<std::string> keys() {
    std::vector<std::string> keys;
    for (const Submission& drained : drain()) keys.push_back(drained.key.text());
    return keys;
  }
  void flush() {
    const WorkState work("something else", {}, nullptr);
    queue.expedite(work, true);
  }
  void release(const std::string& name) {
    Submission ended = submission(name);
    ended.holds_name = true;
    queue.release(ended);
  }
};

}  // namespace

TEST_CASE("the gather time counts from the first submission, and may change") {
  Fixture fixture;
  CHECK_FALSE(fixture.queue.due());
  CHECK(fixture.drain().empty());
  const auto before = Clock::now();
  fixture.queue.push(submission("a"));
  const auto due = fixture.queue.due();
  fixture.queue.push(submission("b"));
  REQUIRE(due);
  CHECK(fixture.queue.take(Clock::now()).empty());
  CHECK(*due >= before + hours(1));
  CHECK(*due <= Clock::now() + hours(1));
  CHECK(fixture.queue.due() == due);
  fixture.queue.push(submission("c", 24));  // 104 bytes together
  CHECK(fixture.is_due());
  fixture.queue.gather(hours(2), 1000);
  CHECK(*fixture.queue.due() > Clock::now() + hours(1));
}

TEST_CASE("only the first submission wakes the coordinator, unless its caller waits") {
  Fixture fixture;
  for (const bool caller_waits : {false, true, false}) {
    const int wakes = fixture.wakes + (caller_waits ? 0 : 1);
    Submission first = submission("a");
    first.start.caller_waits = caller_waits;
    fixture.queue.push(std::move(first));
    CHECK(fixture.wakes == wakes);
    fixture.queue.push(submission("b"));
    CHECK(fixture.wakes == wakes);
    CHECK(fixture.drain().size() == 2);
    for (const std::string name : {"a", "b"}) fixture.release(name);
  }
  CHECK(fixture.queue.counters().wakes.get() == static_cast<std::uint64_t>(fixture.wakes));
}

TEST_CASE("a full fusion buffer is due at once and wakes once") {
  Fixture fixture;
  fixture.queue.push(submission("a", 24));
  CHECK_FALSE(fixture.is_due());
  fixture.queue.push(submission("b", 1));
  CHECK(fixture.is_due());
  CHECK(fixture.wakes == 2);
  fixture.queue.push(submission("c", 50));
  CHECK(fixture.wakes == 2);
  static_cast<void>(fixture.drain());
  fixture.queue.push(submission("d", 1));
  CHECK(*fixture.queue.due() > Clock::now());
  CHECK(fixture.queue.counters().submitted_bytes.get() == 4 * (24 + 1 + 50 + 1));
}

TEST_CASE("what comes back to the queue is due at once, ahead of what came later") {
  Fixture fixture;
  fixture.queue.push(submission("a"));
  std::vector<Submission> taken = fixture.drain();
  fixture.queue.push(submission("b"));
  // Agreements that cannot change leave all submissions where they are.
  CHECK_THROWS_AS(
      fixture.queue.hand_over([]() -> std::vector<Submission> { throw std::bad_alloc(); }),
      std::bad_alloc);
  CHECK_FALSE(fixture.is_due());
  fixture.queue.hand_over([&] { return std::move(taken); });
  CHECK(fixture.is_due());
  CHECK(fixture.keys() == std::vector<std::string>{"a", "b"});
}

TEST_CASE("what somebody waits for stays due at once where agreements change") {
  Fixture fixture;
  Submission group = submission("a");
  group.members.push_back(submission("a"));
  fixture.queue.push(std::move(group));
  fixture.flush();
  fixture.queue.hand_over([] { return std::vector<Submission>(); });
  CHECK(fixture.is_due());
}

TEST_CASE("a waiter makes what is there due at once, and nothing later") {
  Fixture fixture;
  fixture.flush();
  CHECK(fixture.wakes == 0);
  fixture.queue.push(submission("a"));
  fixture.flush();
  fixture.flush();
  CHECK(fixture.wakes == 1);
  CHECK(fixture.queue.counters().flushes.get() == 1);
  CHECK(*fixture.queue.due() <= Clock::now());
  static_cast<void>(fixture.drain());
  fixture.queue.push(submission("b"));
  CHECK(*fixture.queue.due() > Clock::now());
}

TEST_CASE("an operation whose memory is in flight leaves no name and no number") {
  Fixture fixture;
  float value = 0;
  const auto push = [&](const std::string& name) {
    Submission each = submission(name);
    each.start.input = each.start.output = &value;
    each.output_bytes = sizeof value;
    fixture.queue.push(std::move(each));
  };
  push("");
  for (const std::string name : {"", "b"}) {
    CHECK_THROWS_WITH(push(name), Catch::Contains("that allreduce number 0 without a name writes"));
  }
  Submission first = std::move(fixture.drain().front());
  fixture.queue.release(first);
  push("b");
  Submission second = std::move(fixture.drain().front());
  fixture.queue.release(second);
  push("");
  CHECK(fixture.drain().front().key.text() == unnamed_key(1));
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
  CHECK(fixture.drain().size() == 1);
}

TEST_CASE("a detached queue wakes nobody") {
  Fixture fixture;
  fixture.queue.wake();
  CHECK(fixture.wakes == 1);
  fixture.queue.detach();
  fixture.queue.wake();
  fixture.queue.push(submission("a"));
  fixture.flush();
  CHECK(fixture.wakes == 1);
}

TEST_CASE("a set takes operations from its opening to its closing") {
  Fixture fixture;
  Submission other;
  const auto rename = [&other](const std::string& name) { other = submission(name, 1, 3); };
  rename("a");
  const auto push = [&] { fixture.queue.push(Submission(other)); };
  CHECK_THROWS_WITH(push(), "allreduce 'a' in process set 3: the set was removed");
  fixture.queue.names()->open_set(3);
  push();
  CHECK(fixture.queue.names()->close_set(3) == std::vector<std::string>{"allreduce 'a'"});
  rename("b");
  CHECK_THROWS_WITH(push(), "allreduce 'b' in process set 3: the set is being removed");
  CHECK_THROWS_AS(fixture.queue.names()->close_set(3), UsageError);
  fixture.queue.push(submission("b"));
  fixture.queue.names()->open_set(3);
  push();
  CHECK(fixture.drain().size() == 3);
}

TEST_CASE("a group is numbered as its first operation, in the order of the calls") {
  Fixture fixture;
  const auto group = [](const std::string& first, const std::string& second) {
    Submission made;
    made.members = {submission(first), submission(second)};
    OpSpec spec;
    spec.kind = Collective::Barrier;
    spec.name = first;
    for (const Submission& member : made.members) spec.members.push_back(member.spec());
    made.key.spec = share(std::move(spec));
    return made;
  };
  fixture.queue.push(submission("a"));
  fixture.queue.push(group("b", "c"));
  fixture.queue.push(submission("d"));
  fixture.queue.push(group("", ""));
  std::vector<std::uint64_t> numbers;
  for (const Submission& each : fixture.drain()) numbers.push_back(each.number);
  CHECK(numbers == std::vector<std::uint64_t>{1, 2, 4, 5});
}
