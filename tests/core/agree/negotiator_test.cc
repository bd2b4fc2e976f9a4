// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/negotiator.h"

#include <catch2/catch.hpp>

#include "core/src/agree/announcer.h"
#include "ronde/error.h"
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

ReadyMessage shutdown() {
  ReadyMessage message;
  message.shutdown = true;
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

TEST_CASE("a mismatch lists what each rank sent, and the name can be agreed on afterwards") {
  PlainNegotiator negotiator(4);
  OpSpec half = spec_with({2});
  half.dtype = DataType::F16;
  for (const std::string& key : {std::string("x"), unnamed_key(3)}) {
    for (const int rank : {0, 1}) negotiator.add(rank, request(key), kStart);
    negotiator.add(2, request(key, half), kStart);
    negotiator.add(3, request(key, spec_with({2, 3})), kStart);
    const Response mismatch = only_response(negotiator);
    CHECK(mismatch.slot == -1);
    CHECK_THAT(mismatch.error, Contains("ranks 0,1: allreduce f32 [2] sum on cpu") &&
                                   Contains("rank 2: allreduce f16 [2] sum on cpu") &&
                                   Contains("rank 3: allreduce f32 [2, 3] sum on cpu"));
    if (key == "x") {
      CHECK_THAT(mismatch.error, Contains("allreduce 'x' differs between ranks"));
    } else {
      CHECK_THAT(mismatch.error, Contains("number 3 without a name") && Contains("give it a name"));
    }
    negotiator.add_all(request(key));
    CHECK(only_response(negotiator).error.empty());
  }
  CHECK(negotiator.counters().refused.get() == 2);
}

TEST_CASE("a refusal goes before any difference, is not cached, and the slot stays what it is") {
  CachedX negotiator;
  OpSpec refused;
  refused.refusal = "no memory";
  for (std::uint64_t seen = 1; seen < 4; ++seen) {
    // The other rank comes by its slot, in full, and with another shape.
    negotiator.add(0, seen == 1 ? slot_ready(1, 0) : request("x", spec_with({seen == 2 ? 2 : 5})),
                   kStart);
    negotiator.add(1, request("x", refused), kStart);
    const Response response = only_response(negotiator);
    CHECK(response.error == "allreduce 'x' was refused:\n  rank 1: no memory");
    CHECK(response.slot == -1);
    CHECK(response.only_rank == -1);
  }
  // Alike on all ranks, and so nothing differs.
  for (const std::string& name : {std::string("x"), std::string("y")}) {
    negotiator.add_all(request(name, refused));
    const Response response = only_response(negotiator);
    CHECK(response.error == "allreduce '" + name + "' was refused:\n  ranks 0,1: no memory");
    CHECK(response.slot == -1);
  }
  negotiator.add_all(slot_ready(6, 0));
  CHECK(negotiator.decide()->cached.test(0));
  CHECK(negotiator.counters().refused.get() == 5);
}

TEST_CASE("allgathers agree on everything but the rows") {
  OpSpec gather = spec_with({4, 3});
  gather.kind = Collective::Allgather;
  const auto second_with = [&](std::vector<std::int64_t> shape) {
    PlainNegotiator negotiator(2);
    OpSpec other = gather;
    other.shape = std::move(shape);
    negotiator.add(0, request("g", gather), kStart);
    negotiator.add(1, request("g", other), kStart);
    return only_response(negotiator);
  };
  CHECK(second_with({9, 3}).rows.first_dims == std::vector<std::int64_t>{4, 9});
  CHECK(second_with({0, 3}).rows.first_dims == std::vector<std::int64_t>{4, 0});
  CHECK_FALSE(second_with({4, 2}).error.empty());
  CHECK_FALSE(second_with({4}).error.empty());
  CHECK_FALSE(second_with({}).error.empty());
}

TEST_CASE("a rank that comes by slot meets one that comes in full") {
  CachedX negotiator;
  SECTION("slot first") {
    negotiator.add(0, slot_ready(1, 0), kStart);
    negotiator.add(1, request("x"), kStart);
  }
  SECTION("full request first") {
    negotiator.add(1, request("x"), kStart);
    negotiator.add(0, slot_ready(1, 0), kStart);
  }
  const Response response = only_response(negotiator);
  CHECK(response.error.empty());
  CHECK(response.slot == 0);
}

TEST_CASE("a slot that was reassigned behind a rank's back is ignored") {
  CachedX negotiator;
  negotiator.add_all(request("x", spec_with({5})));
  CHECK(only_response(negotiator).slot == 0);
  // Rank 1 has not seen decision 2 yet.
  negotiator.add(1, slot_ready(1, 0), kStart);
  CHECK(negotiator.idle());
  negotiator.add(1, slot_ready(2, 0), kStart);
  CHECK_FALSE(negotiator.idle());
}

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

TEST_CASE("names that never come again are warned of once, when they have filled the cache twice") {
  constexpr int kCapacity = 100;
  PlainNegotiator negotiator(2, kCapacity);
  OpSpec spec = spec_with({2});
  spec.set = 3;
  std::vector<std::pair<int, std::string>> warnings;
  for (int step = 0; step < 10'000; ++step) {
    negotiator.add_all(request("loss of step " + std::to_string(step), spec));
    CHECK(only_response(negotiator).error.empty());
    if (const auto text = negotiator.take_warning()) warnings.emplace_back(step, *text);
  }
  CHECK(negotiator.counters().evictions.get() == 10'000 - kCapacity);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].first == 3 * kCapacity - 1);
  CHECK(warnings[0].second ==
        "operations of process set 3 leave the response cache (RONDE_CACHE_CAPACITY=100) before "
        "they come again, at last allreduce 'loss of step 199' in process set 3: every step pays "
        "for full negotiation. Give an operation the same name, or none, in every step; if a step "
        "has more operations than the cache, raise RONDE_CACHE_CAPACITY");
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

TEST_CASE("a slot that was never assigned, and an operation announced twice, are nonsense") {
  PlainNegotiator negotiator(2);
  CHECK_THROWS_AS(negotiator.add(1, slot_ready(0, 0), kStart), Error);
  ReadyMessage unnamed;
  unnamed.keyed = {{unnamed_key(0), 17, true}};
  CHECK_THROWS_AS(negotiator.add(1, unnamed, kStart), Error);
  negotiator.add(1, request("x"), kStart);
  CHECK_THROWS_WITH(negotiator.add(1, request("x"), kStart),
                    Contains("rank 1 announced allreduce 'x' twice"));
}

TEST_CASE("an operation that expires on one rank fails on those that wait and those that come") {
  PlainNegotiator negotiator(3);
  for (const int rank : {0, 2}) negotiator.add(rank, request("x"), kStart);
  negotiator.add(0, expired("x"), kStart + milliseconds(250));
  const auto decision = negotiator.decide();
  REQUIRE(decision);
  REQUIRE(decision->responses.size() == 2);
  CHECK(decision->responses[0].only_rank == 0);
  CHECK(decision->responses[1].only_rank == 2);
  const std::string text = decision->responses[0].error;
  CHECK_THAT(text, Contains("allreduce 'x' timed out on rank 0") && Contains("250 ms") &&
                       Contains("by rank 1"));
  CHECK(negotiator.idle());

  negotiator.add(1, request("x"), kStart);
  const Response late = only_response(negotiator);
  CHECK(late.only_rank == 1);
  CHECK_THAT(late.error, Contains("allreduce 'x' timed out on rank 0") && Contains("by rank 1;"));
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

TEST_CASE("a rank that missed two expired operations fails twice") {
  PlainNegotiator negotiator(2);
  for (int i = 0; i < 2; ++i) {
    negotiator.add(0, request("x"), kStart);
    negotiator.add(0, expired("x"), kStart);
    CHECK(only_response(negotiator).only_rank == 0);
  }
  negotiator.add(0, request("x"), kStart);
  for (int i = 0; i < 2; ++i) {
    negotiator.add(1, request("x"), kStart);
    const Response late = only_response(negotiator);
    CHECK(late.only_rank == 1);
    CHECK_FALSE(late.error.empty());
  }
  // The third use of the one meets the third of the other.
  negotiator.add(1, request("x"), kStart);
  CHECK(only_response(negotiator).error.empty());
}

TEST_CASE("an expiry of a cached operation fails it") {
  CachedX negotiator;
  negotiator.add(0, slot_ready(1, 0), kStart);
  negotiator.add(0, expired("x"), kStart);
  CHECK(only_response(negotiator).only_rank == 0);
  negotiator.add(1, slot_ready(1, 0), kStart);
  CHECK(only_response(negotiator).only_rank == 1);
  CHECK(negotiator.idle());
}

TEST_CASE("an expiry that comes once all ranks are there is too late") {
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
  decide(2, "y");
  const auto again = late.announce(kStart + milliseconds(7), false);
  REQUIRE(again);
  REQUIRE(again->requests.size() == 1);
  CHECK(again->requests[0].key == "x");
  CHECK(again->expired == std::vector<std::string>{"x"});
}

TEST_CASE("waiting operations are listed oldest first with who is missing") {
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

TEST_CASE("shutdown is decided once every rank has asked and nothing waits") {
  PlainNegotiator negotiator(2);
  negotiator.add(0, shutdown(), kStart);
  CHECK(negotiator.not_shut_down() == std::vector<int>{1});
  CHECK_FALSE(negotiator.decide());
  CHECK_FALSE(negotiator.departure());
  negotiator.add(1, shutdown(), kStart);
  const auto decision = negotiator.decide();
  REQUIRE(decision);
  CHECK(decision->shutdown);
  CHECK_FALSE(negotiator.decide());
}

TEST_CASE("a departure is an operation that waits for a rank that has shut down") {
  PlainNegotiator negotiator(3);
  negotiator.add(0, request("x"), kStart);
  CHECK_FALSE(negotiator.departure());
  negotiator.add(2, shutdown(), kStart);
  const auto failure = negotiator.departure();
  REQUIRE(failure);
  CHECK(failure->rank == 2);
  CHECK_THAT(failure->text, Contains("rank 2 called shutdown()") &&
                                Contains("rank 0 still waited for allreduce 'x'"));
}
