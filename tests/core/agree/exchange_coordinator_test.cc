// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/exchange_coordinator.h"

#include <catch2/catch.hpp>

#include "ronde/error.h"

namespace {

using namespace ronde;
using Catch::Matchers::Contains;
using Kind = ExchangeKind;
using Ranks = std::vector<std::int32_t>;

const ExchangeCoordinator::TimePoint kStart{std::chrono::hours(1)};

ExchangeKey key_of(Kind kind, Ranks ranks, std::uint32_t set = 0, const std::string& name = {}) {
  return {kind, set, name, std::move(ranks)};
}

/// The replies after `rank` has come.
std::vector<ExchangeReply> come(ExchangeCoordinator& exchanges, const ExchangeKey& key, int rank,
                                const std::string& blob = {}) {
  exchanges.add({key, rank, blob}, kStart);
  return exchanges.take();
}

/// The only reply once all have come, with these blobs.
ExchangeReply meet(ExchangeCoordinator& exchanges, const ExchangeKey& key,
                   const std::vector<std::string>& blobs) {
  std::vector<ExchangeReply> replies;
  for (std::size_t i = key.ranks.size(); i-- > 0;) {
    REQUIRE(replies.empty());
    replies = come(exchanges, key, key.ranks[i], blobs[i]);
  }
  REQUIRE(replies.size() == 1);
  CHECK(exchanges.idle());
  return replies[0];
}

}  // namespace

TEST_CASE("an exchange gives the blobs in the order of its ranks") {
  ExchangeCoordinator exchanges(4);
  const ExchangeReply reply =
      meet(exchanges, key_of(Kind::Blobs, {3, 1}, 2, "0"), {"three", "one"});
  CHECK(reply.error.empty());
  CHECK(reply.to == Ranks{3, 1});
  CHECK(reply.blobs == std::vector<std::string>{"three", "one"});
}

TEST_CASE("sets are numbered from one as they are made, and what none can be is refused to all") {
  ExchangeCoordinator exchanges(4);
  const ExchangeReply first = meet(exchanges, key_of(Kind::CreateSet, {2, 0}), {"", ""});
  CHECK(first.set == 1);
  CHECK(first.members == Ranks{2, 0});
  CHECK(exchanges.makes_sets());
  CHECK(meet(exchanges, key_of(Kind::CreateSet, {2, 0}), {"", ""}).set == 2);
  const ExchangeKey add = key_of(Kind::AddSet, {0, 1, 2, 3}, 0, "0");
  const ExchangeReply third = meet(exchanges, add, {"1,3", "1,3", "1,3", "1,3"});
  CHECK(third.set == 3);
  CHECK(third.members == Ranks{1, 3});
  CHECK_THAT(meet(exchanges, add, {"0,5", "0,5", "0,5", "0,5"}).error, Contains("rank 5"));
  CHECK_THAT(meet(exchanges, add, {"", "", "", ""}).error, Contains("at least one rank"));
}

TEST_CASE(
    "created sets of one tag that wait for each other's ranks are refused, also to who is late") {
  ExchangeCoordinator exchanges(3);
  const ExchangeKey two = key_of(Kind::CreateSet, {0, 1}, 0, "t");
  const ExchangeKey three = key_of(Kind::CreateSet, {0, 1, 2}, 0, "t");
  CHECK(come(exchanges, two, 0).empty());
  const auto replies = come(exchanges, three, 1);
  REQUIRE(replies.size() == 2);
  for (const ExchangeReply& reply : replies) {
    CHECK_THAT(reply.error, Contains("rank 0: the process set of ranks 0,1 (tag 't')") &&
                                Contains("rank 1: the process set of ranks 0,1,2"));
    CHECK(reply.to == (reply.key == two ? Ranks{0} : Ranks{1}));
  }
  const auto late = come(exchanges, three, 2);
  REQUIRE(late.size() == 1);
  CHECK(late[0].error == replies[0].error);
  CHECK(late[0].to == Ranks{2});
  // And then all may try again.
  CHECK(meet(exchanges, two, {"", ""}).error.empty());
}

TEST_CASE("created sets that only share ranks do not disturb each other") {
  ExchangeCoordinator exchanges(3);
  const Ranks sets[] = {{0, 1}, {1, 2}, {2, 0}};
  for (const Ranks& set : sets)
    CHECK(come(exchanges, key_of(Kind::CreateSet, set), set[0]).empty());
  for (const Ranks& set : sets)
    CHECK(come(exchanges, key_of(Kind::CreateSet, set), set[1]).size() == 1);
}

TEST_CASE("a set that a rank could not make is refused to the others wherever they are") {
  ExchangeCoordinator exchanges(3);
  const ExchangeKey blobs = key_of(Kind::Blobs, {0, 1, 2}, 1, "0");
  const ExchangeKey finish = key_of(Kind::FinishSet, {0, 1, 2}, 1);
  CHECK(come(exchanges, blobs, 0).empty());
  const auto refused = come(exchanges, finish, 1, "no memory");
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].to == Ranks{0});
  CHECK_THAT(refused[0].error, Contains("rank 1: no memory"));
  CHECK_THAT(come(exchanges, blobs, 2).at(0).error, Contains("rank 1: no memory"));
  CHECK(come(exchanges, finish, 0, "as rank 1").empty());
  const auto end = come(exchanges, finish, 2, "as rank 1");
  REQUIRE(end.size() == 1);
  CHECK(end[0].to == Ranks{0, 1, 2});
  CHECK_THAT(end[0].error, Contains("process set 1 was not made") && Contains("no memory"));
  CHECK(exchanges.idle());
}

TEST_CASE(
    "exchanges that wait are listed; one without its sender, or twice from one, is an error") {
  ExchangeCoordinator exchanges(3);
  const ExchangeKey key = key_of(Kind::CreateSet, {2, 0});
  CHECK_THROWS_AS(exchanges.add({key, 1, ""}, kStart), Error);
  exchanges.add({key, 2, ""}, kStart);
  CHECK_THROWS_AS(exchanges.add({key, 2, ""}, kStart), Error);
  const auto waiting = exchanges.waiting();
  REQUIRE(waiting.size() == 1);
  CHECK(waiting[0].text == "creating the process set of ranks 2,0");
  CHECK(waiting[0].submitted_ranks == std::vector<int>{2});
  CHECK(waiting[0].missing_ranks == std::vector<int>{0});
  CHECK(waiting[0].since == kStart);
}
