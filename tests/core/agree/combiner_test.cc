// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/combiner.h"

#include <catch2/catch.hpp>

#include "tests/core/agree/submissions.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;
using Ranks = std::vector<std::int32_t>;

const TimePoint kStart{std::chrono::hours(1)};
constexpr milliseconds kPatience{100};

ReadyMessage ready_for(std::size_t slot) {
  ReadyMessage message;
  message.cached.set(slot);
  return message;
}

ReadyMessage request(const std::string& key) {
  ReadyMessage message;
  message.requests = {{key, spec_for(key), true}};
  return message;
}

/// The decision number `number`, which gives `slot` to `key`.
DecisionMessage assignment(std::uint64_t number, const std::string& key, std::int32_t slot) {
  DecisionMessage decision;
  decision.number = number;
  decision.responses = {{key, "", -1, spec_for(key), {}, true, slot}};
  return decision;
}

/// Ranks 4, 5 and 7 of a host.
struct Host {
  /// Adds the messages in this order; each comes with its rank.
  void add(const std::vector<std::pair<int, ReadyMessage>>& messages, TimePoint now = kStart) {
    for (const auto& [rank, message] : messages) combiner.add(rank, message, now);
  }
  /// The parts of the message to rank 0, which has one for each of these.
  std::vector<HostReadyMessage::Part> take(const std::vector<Ranks>& expected,
                                           TimePoint now = kStart) {
    const auto message = combiner.take(now);
    const auto parts = message ? message->parts : std::vector<HostReadyMessage::Part>();
    REQUIRE(parts.size() == expected.size());
    for (std::size_t i = 0; i < parts.size(); ++i) CHECK(parts[i].ranks == expected[i]);
    return parts;
  }

  Combiner combiner{{4, 5, 7}, kPatience};
};

}  // namespace

TEST_CASE("messages go on at once, rank by rank, in their order and before a timeout") {
  Host host;
  const auto message = [](const std::string& key, int peer) {
    OpSpec spec = spec_with({2});
    spec.kind = Collective::Send;
    spec.peer = peer;
    return Announcement{key, share(spec), true};
  };
  ReadyMessage first = request("x");
  first.requests.push_back(message("b", 1));
  first.requests.push_back(message("a", 2));
  ReadyMessage second, third;
  second.requests = {message("c", 3)};
  third.requests = {message("a", 1)};  // as on rank 5: it means something else
  third.expired = {"a"};
  host.add({{5, first}, {5, second}, {7, third}});
  const auto parts = host.take({{5}, {7}});
  std::vector<std::string> keys;
  for (const Announcement& item : parts[0].ready.requests) {
    if (is_point_to_point(item.spec->kind)) keys.push_back(item.key);
  }
  CHECK(keys == std::vector<std::string>{"b", "a", "c"});
  CHECK(parts[1].ready.requests.at(0).key == "a");
  CHECK(parts[1].ready.expired == std::vector<std::string>{"a"});
}

TEST_CASE("what was refused to every rank of a host is combined again when it is announced anew") {
  Host host;
  const TimePoint late = kStart + kPatience;
  const auto refuse = [&](std::uint64_t number, int rank) {
    DecisionMessage decision = assignment(number, "x", -1);
    decision.responses[0].error = "it timed out";
    decision.responses[0].only_rank = rank;
    host.combiner.pass(decision);
  };
  host.add({{4, request("x")}});
  host.take({{4}}, late);
  refuse(1, 4);
  refuse(2, 9);  // of another host
  // The others are told of at once, as rank 0 can answer them.
  host.add({{5, request("x")}}, late);
  host.take({{5}}, late);
  refuse(3, 5);
  host.add({{7, request("x")}}, late);
  host.take({{7}}, late);
  refuse(4, 7);
  host.add({{4, request("x")}, {5, request("x")}}, late);
  host.take({}, late);
  host.add({{7, request("x")}}, late);
  host.take({{4, 5, 7}}, late);
}

TEST_CASE("a timeout or a shutdown does not overtake what its rank has announced") {
  const bool expires = GENERATE(true, false);
  ReadyMessage end;
  if (expires) end.expired = {"x"};
  end.shutdown = !expires;
  Host host;
  host.add({{5, ready_for(3)}, {5, request("x")}, {7, ready_for(3)}, {5, end}});
  // This holds if a decision passes in between.
  host.combiner.pass(assignment(1, "y", 8));
  const ReadyMessage ready = host.take({{5}, {7}})[0].ready;
  CHECK(ready.decisions_seen == 0);
  CHECK(ready.cached.test(3));
  CHECK(ready.requests.size() == 1);
  CHECK(ready.expired == end.expired);
  CHECK(ready.shutdown == end.shutdown);
}

TEST_CASE("what a leader below has merged is merged further, or sent on as it came") {
  // Rank 1 is above the leader of ranks 4, 5 and 7.
  const Ranks below = {4, 5, 7};
  Combiner combiner({1, 4, 5, 7}, kPatience);
  const auto take = [&](TimePoint now = kStart) {
    const auto message = combiner.take(now);
    return message ? message->parts : std::vector<HostReadyMessage::Part>();
  };
  ReadyMessage merged = request("x");
  merged.cached.set(3);
  combiner.add(below, merged, kStart);
  CHECK(take().empty());
  combiner.add(1, merged, kStart);
  const auto complete = take();
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].ranks == Ranks{1, 4, 5, 7});
  CHECK(complete[0].ready.cached.test(3));
  CHECK(complete[0].ready.requests.size() == 1);

  combiner.pass(assignment(1, "x", 5));
  combiner.add(below, merged, kStart);
  CHECK(take(kStart + kPatience - milliseconds(1)).empty());
  const auto late = take(kStart + kPatience);
  REQUIRE(late.size() == 1);
  CHECK(late[0].ranks == below);
  CHECK(late[0].ready.decisions_seen == 1);
  CHECK(late[0].ready.cached.test(3));
  CHECK(late[0].ready.requests.size() == 1);
}

TEST_CASE("the end of a rank does not overtake what a leader below has merged") {
  Combiner combiner({1, 4, 5, 7}, kPatience);
  combiner.add(Ranks{4, 5, 7}, ready_for(3), kStart);
  ReadyMessage end;
  end.shutdown = true;
  combiner.add(1, end, kStart);
  combiner.add(5, end, kStart);
  const auto message = combiner.take(kStart);
  REQUIRE(message);
  std::vector<Ranks> ranks;
  for (const auto& part : message->parts) ranks.push_back(part.ranks);
  CHECK(ranks == std::vector<Ranks>{{4, 5, 7}, {1}, {5}});
  CHECK(message->parts[0].ready.cached.test(3));
}

TEST_CASE("a combiner refuses invalid messages") {
  Host host;
  CHECK_THROWS_WITH(host.combiner.add(6, ready_for(0), kStart), Catch::Contains("not above it"));
  CHECK_THROWS_WITH(host.combiner.add(Ranks{5, 4}, ready_for(0), kStart),
                    Catch::Contains("not in order"));
  host.combiner.add(Ranks{4, 5}, request("y"), kStart);
  CHECK_THROWS_WITH(host.combiner.add(Ranks{4, 5}, request("y"), kStart),
                    Catch::Contains("rank 4 announced"));
  host.combiner.add(4, request("x"), kStart);
  CHECK_THROWS_WITH(host.combiner.add(4, request("x"), kStart),
                    Catch::Contains("rank 4 announced"));
  // In a process set, texts number ranks as the group does.
  Combiner of_set({0, 2}, kPatience, {9, 3, 5});
  CHECK_THROWS_WITH(of_set.add(1, ready_for(0), kStart), Catch::Contains("rank 3 announced"));
  of_set.add(2, request("x"), kStart);
  CHECK_THROWS_WITH(of_set.add(2, request("x"), kStart), Catch::Contains("rank 5 announced"));
}
