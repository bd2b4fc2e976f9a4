// SPDX-License-Identifier: Apache-2.0
#include "core/src/combiner.h"

#include <catch2/catch.hpp>

#include "ronde/error.h"
#include "tests/unit/submissions.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;
using TimePoint = Combiner::TimePoint;
using Ranks = std::vector<std::int32_t>;

const TimePoint kStart{std::chrono::hours(1)};
constexpr milliseconds kPatience{100};

ReadyMessage slots(std::vector<std::size_t> ready, std::vector<std::size_t> absent = {},
                   std::uint64_t seen = 0) {
  ReadyMessage message;
  message.decisions_seen = seen;
  for (const std::size_t slot : ready) message.cached.set(slot);
  for (const std::size_t slot : absent) message.absent.set(slot);
  return message;
}

ReadyMessage request(const std::string& key, std::int64_t count = 2, bool contributes = true) {
  ReadyMessage message;
  message.requests = {{key, meta_with({count}), contributes}};
  return message;
}

ReadyMessage unnamed(std::uint64_t sequence, std::uint32_t slot, bool contributes = true,
                     std::uint64_t seen = 0) {
  ReadyMessage message;
  message.decisions_seen = seen;
  message.keyed = {{unnamed_key(sequence), slot, contributes}};
  return message;
}

using Bits = std::vector<std::size_t>;

Bits bits_of(const BitVector& vector) {
  Bits bits;
  vector.for_each([&](std::size_t bit) { bits.push_back(bit); });
  return bits;
}

/// The decision number `number`, which gives `slot` to `key`.
DecisionMessage assignment(std::uint64_t number, const std::string& key, std::int32_t slot) {
  DecisionMessage decision;
  decision.number = number;
  decision.responses = {{key, "", -1, meta_with({2}), {}, true, slot}};
  return decision;
}

/// Ranks 4, 5 and 7 of a host.
struct Host {
  std::vector<HostReadyMessage::Part> take(TimePoint now = kStart) {
    const auto message = combiner.take(now);
    return message ? message->parts : std::vector<HostReadyMessage::Part>();
  }

  Combiner combiner{{4, 5, 7}, kPatience};
};

}  // namespace

TEST_CASE("messages go on at once, rank by rank, in their order and before a timeout") {
  Host host;
  const auto message = [](const std::string& key, int peer) {
    RequestMeta meta = meta_with({2});
    meta.kind = Collective::Send;
    meta.peer = peer;
    return FullRequest{key, meta, true};
  };
  ReadyMessage first = request("x");
  first.requests.push_back(message("b", 1));
  first.requests.push_back(message("a", 2));
  host.combiner.add(5, first, kStart);
  ReadyMessage second;
  second.requests = {message("c", 3)};
  host.combiner.add(5, second, kStart);
  second.requests = {message("a", 1)};  // as on rank 5: it means something else
  second.expired = {"a"};
  host.combiner.add(7, second, kStart);
  const auto parts = host.take();
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].ranks == Ranks{5});
  CHECK(parts[1].ranks == Ranks{7});
  std::vector<std::string> keys;
  for (const FullRequest& item : parts[0].ready.requests) {
    if (is_point_to_point(item.meta.kind)) keys.push_back(item.key);
  }
  CHECK(keys == std::vector<std::string>{"b", "a", "c"});
  CHECK(parts[1].ready.requests.at(0).key == "a");
  CHECK(parts[1].ready.expired == std::vector<std::string>{"a"});
}

TEST_CASE("what all ranks of a host are ready for is told once, when the last one is") {
  Host host;
  const auto add = [&](int rank, const ReadyMessage& ready) {
    host.combiner.add(rank, ready, kStart);
    host.combiner.add(rank, request("x", 2, rank == 5), kStart);
    host.combiner.add(rank, unnamed(3, 9, false), kStart);
  };
  add(5, slots({1, 70}, {70}));
  add(4, slots({1, 2, 70}, {2, 70}));
  CHECK(host.take().empty());
  add(7, slots({1, 2, 70}, {1, 2, 70}));
  const auto parts = host.take();
  REQUIRE(parts.size() == 1);
  CHECK(parts[0].ranks == Ranks{4, 5, 7});
  const ReadyMessage& ready = parts[0].ready;
  CHECK(bits_of(ready.cached) == Bits{1, 70});
  // It is absent where no rank contributes.
  CHECK(bits_of(ready.absent) == Bits{70});
  REQUIRE(ready.requests.size() == 1);
  CHECK(ready.requests[0].key == "x");
  CHECK(ready.requests[0].contributes);
  REQUIRE(ready.keyed.size() == 1);
  CHECK(ready.keyed[0].key == unnamed_key(3));
  CHECK_FALSE(ready.keyed[0].contributes);
  CHECK(host.combiner.counters().combined.get() == 4);
  CHECK(host.combiner.counters().scattered.get() == 0);
  host.combiner.add(5, slots({2}), kStart);
  CHECK(bits_of(host.take().at(0).ready.cached) == Bits{2});
  CHECK_FALSE(host.combiner.next_deadline());
}

TEST_CASE("requests that differ go on rank by rank, in one message") {
  Host host;
  host.combiner.add(4, request("x", 2), kStart);
  host.combiner.add(5, request("x", 3), kStart);
  host.combiner.add(7, request("x", 2), kStart);
  host.combiner.add(4, unnamed(0, 1), kStart);
  host.combiner.add(5, unnamed(0, 2), kStart);
  host.combiner.add(7, request(unnamed_key(0)), kStart);
  const auto parts = host.take();
  REQUIRE(parts.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(parts[i].ranks == Ranks{std::vector<std::int32_t>{4, 5, 7}[i]});
    CHECK(parts[i].ready.requests.size() + parts[i].ready.keyed.size() == 2);
  }
  CHECK(parts[1].ready.requests[0].meta.shape == std::vector<std::int64_t>{3});
}

TEST_CASE("what some ranks do not come to is told rank by rank once patience is over") {
  Host host;
  host.combiner.add(4, slots({3}, {3}), kStart);
  host.combiner.add(7, request("x"), kStart + milliseconds(10));
  CHECK(host.take(kStart + milliseconds(10)).empty());
  CHECK(host.combiner.next_deadline() == kStart + kPatience);
  const auto first = host.take(kStart + kPatience);
  REQUIRE(first.size() == 1);
  CHECK(first[0].ranks == Ranks{4});
  CHECK(bits_of(first[0].ready.cached) == Bits{3});
  CHECK(bits_of(first[0].ready.absent) == Bits{3});
  const TimePoint late = kStart + kPatience + milliseconds(10);
  CHECK(host.combiner.next_deadline() == late);
  CHECK(host.take(late).at(0).ranks == Ranks{7});
  CHECK_FALSE(host.combiner.next_deadline());

  // The rest of them goes at once, until they are agreed.
  host.combiner.add(5, slots({3}), late);
  host.combiner.add(5, request("x"), late);
  const auto second = host.take(late);
  REQUIRE(second.size() == 1);
  CHECK(second[0].ranks == Ranks{5});
  CHECK(bits_of(second[0].ready.cached) == Bits{3});
  CHECK(second[0].ready.requests.size() == 1);
  DecisionMessage agreed = assignment(1, "x", -1);
  agreed.cached.set(3);
  host.combiner.pass(agreed);
  host.combiner.add(5, slots({3}, {}, 1), late);
  host.combiner.add(5, request("x"), late);
  CHECK(host.take(late).empty());
}

TEST_CASE("a timeout or a shutdown does not overtake what its rank has announced") {
  ReadyMessage end;
  SECTION("timeout") {
    end.expired = {"x"};
  }
  SECTION("shutdown") {
    end.shutdown = true;
  }
  Host host;
  host.combiner.add(5, slots({3}), kStart);
  host.combiner.add(5, request("x"), kStart);
  host.combiner.add(7, slots({3}), kStart);
  host.combiner.add(5, end, kStart);
  // Also if a decision passes in between.
  host.combiner.pass(assignment(1, "y", 8));
  const auto parts = host.take();
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].ranks == Ranks{5});
  CHECK(parts[0].ready.decisions_seen == 0);
  CHECK(bits_of(parts[0].ready.cached) == Bits{3});
  CHECK(parts[0].ready.requests.size() == 1);
  CHECK(parts[0].ready.expired == end.expired);
  CHECK(parts[0].ready.shutdown == end.shutdown);
  CHECK(parts[1].ranks == Ranks{7});
}

TEST_CASE("a name that comes by slot and in full on one host is told at once") {
  const bool slot_first = GENERATE(true, false);
  Host host;
  host.combiner.pass(assignment(1, "x", 6));
  const auto by_slot = [&] { host.combiner.add(4, slots({6}, {}, 1), kStart); };
  if (slot_first) by_slot();
  host.combiner.add(5, request("x", 9), kStart);
  if (!slot_first) by_slot();
  const auto parts = host.take();
  REQUIRE(parts.size() == 2);
  CHECK(bits_of(parts[0].ready.cached) == Bits{6});
  CHECK(parts[1].ready.requests.size() == 1);
  host.combiner.add(7, slots({6}, {}, 1), kStart);
  CHECK(bits_of(host.take().at(0).ready.cached) == Bits{6});
}

TEST_CASE("slots mean what they mean to the last decision that has passed") {
  Host host;
  host.combiner.pass(assignment(1, "x", 0));
  host.combiner.add(4, slots({0}, {}, 1), kStart);
  host.combiner.add(5, unnamed(2, 0, true, 1), kStart);
  host.combiner.pass(assignment(2, "y", 0));
  // Both were about "x", and so is this; the ranks announce it anew.
  host.combiner.add(7, slots({0}, {}, 1), kStart);
  CHECK(host.take(kStart + kPatience).empty());
  for (const int rank : {4, 5, 7}) host.combiner.add(rank, slots({0}, {}, 2), kStart);
  const auto parts = host.take();
  REQUIRE(parts.size() == 1);
  CHECK(parts[0].ready.decisions_seen == 2);
  CHECK(bits_of(parts[0].ready.cached) == Bits{0});
}

TEST_CASE("a combiner refuses what makes no sense") {
  Host host;
  CHECK_THROWS_WITH(host.combiner.add(6, slots({0}), kStart), Catch::Contains("another host"));
  host.combiner.add(4, request("x"), kStart);
  CHECK_THROWS_WITH(host.combiner.add(4, request("x"), kStart),
                    Catch::Contains("rank 4 announced"));
  // Of a process set: as they are called in the group.
  Combiner of_set({0, 2}, kPatience, {9, 3, 5});
  CHECK_THROWS_WITH(of_set.add(1, slots({0}), kStart), Catch::Contains("rank 3 announced"));
  of_set.add(2, request("x"), kStart);
  CHECK_THROWS_WITH(of_set.add(2, request("x"), kStart), Catch::Contains("rank 5 announced"));
}
