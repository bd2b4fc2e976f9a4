// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/negotiator.h"

#include <catch2/catch.hpp>

#include "core/src/agree/announcer.h"
#include "tests/core/agree/negotiators.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;
using std::chrono::milliseconds;

ReadyMessage expired(const std::string& key) {
  ReadyMessage message;
  message.expired = {key};
  return message;
}

/// A negotiator of two ranks that has cached "x" in slot 0 by its first decision.
struct CachedX : PlainNegotiator {
  explicit CachedX(std::uint64_t capacity = 8) : PlainNegotiator(2, capacity) {
    add_all(request("x"));
    REQUIRE(only_response(*this).slot == 0);
  }
};

}  // namespace

TEST_CASE("a slot that a rank waits on, or that the same decision executes, is not evicted") {
  CachedX negotiator(1);
  negotiator.add(0, slot_ready(1, 0), kStart);
  negotiator.add_all(request("y"));
  CHECK(only_response(negotiator).slot == -1);
  negotiator.add(1, slot_ready(1, 0), kStart);
  negotiator.add_all(request("y", spec_with({1})));
  const auto decision = negotiator.decide();
  CHECK(decision->cached.test(0));
  CHECK(decision->responses.at(0).slot == -1);
  negotiator.add_all(request("z"));
  CHECK(only_response(negotiator).slot == 0);
  CHECK(negotiator.counters().evictions.get() == 1);
}

TEST_CASE("slots that were used before they are evicted are no reason to warn") {
  PlainNegotiator negotiator(1, 1);
  for (std::uint64_t step = 0; step < 20; ++step) {
    negotiator.add_all(request("x" + std::to_string(step)));
    REQUIRE(only_response(negotiator).slot == 0);
    negotiator.add_all(slot_ready(2 * step + 1, 0));
    REQUIRE(negotiator.decide()->cached.test(0));
  }
  CHECK(negotiator.counters().evictions.get() == 19);
  CHECK_FALSE(negotiator.take_warning());
}

TEST_CASE("a slot that was never assigned, and an operation announced twice, are errors") {
  PlainNegotiator negotiator(2);
  CHECK_THROWS_AS(negotiator.add(1, slot_ready(0, 0), kStart), Error);
  ReadyMessage unnamed;
  unnamed.requests = {{unnamed_key(0), nullptr, true, 0, 17}};
  CHECK_THROWS_AS(negotiator.add(1, unnamed, kStart), Error);
  negotiator.add(1, request("x"), kStart);
  CHECK_THROWS_WITH(negotiator.add(1, request("x"), kStart),
                    Contains("rank 1 announced allreduce 'x' twice"));
}

TEST_CASE("a refusal is kept for a late rank, whatever else is refused, until there are too many") {
  PlainNegotiator negotiator(2);
  const auto expire = [&](const std::string& name) {
    negotiator.add(0, request(name), kStart);
    negotiator.add(0, expired(name), kStart);
  };
  constexpr std::size_t kMost = 65'536;
  for (std::size_t i = 0; i < kMost; ++i) expire("x" + std::to_string(i));
  CHECK(negotiator.decide()->responses.size() == kMost);
  CHECK_FALSE(negotiator.overflow());
  for (const std::string name : {"x0", "x65535"}) {
    negotiator.add(1, request(name), kStart);
    const Response late = only_response(negotiator);
    CHECK(late.only_rank == 1);
    CHECK_THAT(late.error, Contains("allreduce '" + name + "' timed out on rank 0"));
  }
  for (const char* const name : {"a", "b"}) expire(name);
  CHECK_FALSE(negotiator.overflow());
  expire("c");
  const auto overflow = negotiator.overflow();
  REQUIRE(overflow);
  CHECK(overflow->rank == 1);
  CHECK_THAT(overflow->text, Contains("more than 65536 operations timed out") &&
                                 Contains("submit on every rank what has a timeout"));
}

TEST_CASE("an expiry is ignored once all ranks have announced the operation") {
  CachedX negotiator;
  negotiator.add_all(request("y"));
  negotiator.add(0, expired("y"), kStart);
  CHECK(only_response(negotiator).error.empty());
  negotiator.add_all(slot_ready(2, 0));
  negotiator.add(0, expired("x"), kStart);
  const auto decision = negotiator.decide();
  REQUIRE(decision);
  CHECK((decision->cached.test(0) || decision->responses.at(0).error.empty()));
}

TEST_CASE("an expiry of what its rank has not announced, or what was decided, is ignored") {
  CachedX negotiator;
  negotiator.add(1, expired("x"), kStart);
  negotiator.add(1, expired("unheard of"), kStart);
  CHECK_FALSE(negotiator.decide());
  CHECK(negotiator.idle());
  negotiator.add(0, request("y"), kStart);
  negotiator.add(1, expired("y"), kStart);
  CHECK_FALSE(negotiator.decide());
  negotiator.add(1, request("y"), kStart);
  CHECK(only_response(negotiator).error.empty());
}

TEST_CASE("an announcement that was ignored can still expire once it is repeated") {
  // Rank 1 names slot 0 while decision 2, which gives the slot to another shape, is on its way, and
  // its timeout passes before that arrives.
  ResponseCache cache(1);
  Announcer late(cache);
  const auto decide = [&](std::uint64_t number, const std::string& name) {
    DecisionMessage decision;
    decision.number = number;
    decision.responses = {{name, "", -1, spec_for(name), {}, true, 0}};
    REQUIRE(late.apply(decision).agreed.size() == 1);
  };
  late.add(submission("x"));
  static_cast<void>(late.announce(kStart, false));
  decide(1, "x");
  late.add(submission("y"));
  static_cast<void>(late.announce(kStart, false));
  late.add(submission("x", kStart + milliseconds(5)));
  CHECK(late.announce(kStart, false)->cached.test(0));
  CHECK(late.announce(kStart + milliseconds(6), false)->expired.size() == 1);
  CHECK_FALSE(late.announce(kStart + milliseconds(6), false));
  CHECK_FALSE(late.next_deadline());
  decide(2, "y");
  const auto again = late.announce(kStart + milliseconds(7), false);
  REQUIRE(again);
  REQUIRE(again->requests.size() == 1);
  CHECK(again->requests[0].key == "x");
  CHECK(again->expired == std::vector<std::string>{"x"});
}

TEST_CASE("waiting operations are listed oldest first with the missing ranks") {
  CachedX negotiator;
  negotiator.add(1, request(unnamed_key(0)), kStart + milliseconds(1));
  negotiator.add(0, slot_ready(1, 0), kStart + milliseconds(2));
  negotiator.add(0, request("a"), kStart + milliseconds(2));
  const auto waiting = negotiator.waiting();
  REQUIRE(waiting.size() == 3);
  CHECK(waiting[0].name.empty());
  CHECK(waiting[0].text == "allreduce number 0 without a name");
  CHECK(waiting[0].submitted_ranks == std::vector<int>{1});
  CHECK(waiting[0].missing_ranks == std::vector<int>{0});
  CHECK(waiting[1].name == "a");
  CHECK(waiting[2].name == "x");
  CHECK(waiting[2].text == "allreduce 'x'");
  CHECK(waiting[2].since == kStart + milliseconds(2));
  CHECK(waiting[2].missing_ranks == std::vector<int>{1});
}

TEST_CASE("a slot that is demoted to a full request keeps its age") {
  PlainNegotiator negotiator(3);
  negotiator.add_all(request("x"));
  REQUIRE(negotiator.decide());
  negotiator.add(0, slot_ready(1, 0), kStart + milliseconds(10));
  negotiator.add(1, request("x", spec_with({3})), kStart + milliseconds(20));
  REQUIRE(negotiator.waiting().size() == 1);
  CHECK(negotiator.waiting()[0].since == kStart + milliseconds(10));
}
