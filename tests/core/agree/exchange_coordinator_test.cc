// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/exchange_coordinator.h"

#include <catch2/catch.hpp>

namespace {

using namespace ronde;
using Catch::Matchers::Contains;
using Kind = ExchangeKind;
using Ranks = std::vector<std::int32_t>;

const TimePoint kStart{std::chrono::hours(1)};

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
  CHECK_THAT(meet(exchanges, add, {"-1,0", "-1,0", "-1,0", "-1,0"}).error, Contains("rank -1"));
  CHECK_THAT(meet(exchanges, add, {"", "", "", ""}).error, Contains("at least one rank"));
}

TEST_CASE(
    "created sets of one tag that wait for each other's ranks are refused, also to late ranks") {
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
  // Then all ranks may try again.
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
