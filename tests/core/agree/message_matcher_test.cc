// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/message_matcher.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/core/agree/submissions.h"

namespace {

using namespace ronde;
using ronde::test::everybody;

const TimePoint kStart{std::chrono::hours(1)};

Problem nothing_wrong(const OpSpec&) {
  return std::nullopt;
}

SpecPtr message(Collective kind, int peer, std::int64_t tag, std::int64_t count = 2) {
  OpSpec spec;
  spec.kind = kind;
  spec.peer = peer;
  spec.tag = tag;
  spec.shape = {count};
  return share(spec);
}

/// One end of a match: this key of this rank met that rank.
struct End {
  std::string key;
  int rank;
  int peer;

  friend bool operator==(const End&, const End&) = default;
};

std::ostream& operator<<(std::ostream& out, const End& end) {
  return out << end.key << " of rank " << end.rank << " met rank " << end.peer;
}

/// Announces by short words; every key is its own.
struct Matching {
  void send(int rank, const std::string& key, int to, std::int64_t tag = 0) {
    matcher.add(rank, key, message(Collective::Send, to, tag), kStart);
  }
  void recv(int rank, const std::string& key, int from, std::int64_t tag = 0) {
    matcher.add(rank, key, message(Collective::Recv, from, tag), kStart);
  }
  std::vector<End> take() {
    std::vector<End> ends;
    for (const Response& response : matcher.take()) {
      CHECK(response.error.empty());
      CHECK(response.slot < 0);
      CHECK(response.contributed);
      ends.push_back({response.key, response.only_rank, response.spec->peer});
    }
    return ends;
  }

  MessageMatcher matcher{everybody(4), nothing_wrong};
};

using Ends = std::vector<End>;

}  // namespace

TEST_CASE("a recv from any rank that expires names all ranks that could have sent") {
  Matching ranks;
  ranks.recv(2, "x", kAnyRank);
  ranks.matcher.expire(1, "x", kStart);  // another rank's message has the same key
  CHECK_FALSE(ranks.matcher.idle());
  ranks.matcher.expire(2, "x", kStart);
  const Response expired = ranks.matcher.take().at(0);
  CHECK_THAT(expired.error,
             Catch::Contains("recv from any rank (tag 0) timed out on rank 2") &&
                 Catch::Contains("no send that fits had been submitted by ranks 0,1,3") &&
                 Catch::Contains("see what those ranks do instead"));
  CHECK(expired.missing == std::vector<std::int32_t>{0, 1, 3});
  CHECK(ranks.matcher.idle());
}

TEST_CASE("ends that do not agree, or of which one cannot be done, fail both with one text") {
  const std::string which = "the message from rank 0 to rank 1 (tag 5) ";
  const auto differs = [&](const std::string& receive) {
    return which + "differs between them:\n  rank 0: send f32 [4] to rank 1 (tag 5) on cpu\n" +
           "  rank 1: recv " + receive + "\nBoth must give as many elements, of the same type " +
           "and on the same kind of device";
  };
  struct Row {
    std::function<void(OpSpec&)> change;
    std::string error;
  };
  const std::vector<Row> rows = {
      {[](OpSpec&) {}, ""},
      {[](OpSpec& spec) { spec.shape = {3}; }, differs("f32 [3] from rank 0 (tag 5) on cpu")},
      {[](OpSpec& spec) { spec.dtype = DataType::I32; },
       differs("i32 [2, 2] from rank 0 (tag 5) on cpu")},
      {[](OpSpec& spec) { spec.device = DeviceKind::Cuda; },
       differs("f32 [2, 2] from rank 0 (tag 5) on cuda")},
      {[](OpSpec& spec) { spec.dtype = DataType::F64; },
       which + "is impossible:\n  rank 1: no such backend"},
      {[](OpSpec& spec) {
         spec.dtype = DataType::F64;
         spec.refusal = "no memory";
       },
       which + "was refused:\n  rank 1: no memory"}};
  for (const Row& row : rows) {
    MessageMatcher matcher(everybody(2), [](const OpSpec& spec) {
      return spec.dtype == DataType::F64 ? Problem("no such backend") : std::nullopt;
    });
    OpSpec receive = *message(Collective::Recv, 0, 5);
    receive.shape = {2, 2};
    row.change(receive);
    matcher.add(1, "r", share(receive), kStart);
    matcher.add(0, "s", message(Collective::Send, 1, 5, 4), kStart);
    const std::vector<Response> responses = matcher.take();
    REQUIRE(responses.size() == 2);
    for (const int rank : {0, 1}) {
      const Response& response = responses[static_cast<std::size_t>(rank)];
      CHECK(response.only_rank == rank);
      CHECK(response.error == row.error);
    }
    CHECK(matcher.idle());
  }
}

TEST_CASE("an invalid peer is an error") {
  MessageMatcher matcher(everybody(2), nothing_wrong);
  for (const int peer : {0, 2, -1, -2}) {
    CHECK_THROWS_AS(matcher.add(0, "s", message(Collective::Send, peer, 0), kStart), Error);
  }
  CHECK_THROWS_AS(matcher.add(0, "r", message(Collective::Recv, -2, 0), kStart), Error);
}

TEST_CASE("many messages match as in a list of all of them") {
  struct Announced {
    std::string key;
    int rank;
    SpecPtr spec;
  };
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int first, int last) {
      return std::uniform_int_distribution<int>(first, last)(random);
    };
    Matching ranks;
    std::vector<Announced> waiting;
    Ends expected;
    for (int i = 0; i < 400; ++i) {
      const bool sends = pick(0, 1) == 0;
      const int rank = pick(0, 3);
      const bool any = !sends && pick(0, 2) == 0;
      const int peer = any ? kAnyRank : (rank + pick(1, 3)) % 4;
      const Announced mine{std::to_string(i), rank,
                           message(sends ? Collective::Send : Collective::Recv, peer, pick(0, 1))};
      const auto names = [](const Announced& one, const Announced& other) {
        return one.spec->peer == other.rank || one.spec->peer == kAnyRank;
      };
      const auto fits = [&](const Announced& other) {
        return other.spec->kind != mine.spec->kind && other.spec->tag == mine.spec->tag &&
               names(mine, other) && names(other, mine);
      };
      const auto found = std::find_if(waiting.begin(), waiting.end(), fits);
      ranks.matcher.add(rank, mine.key, mine.spec, kStart);
      if (found == waiting.end()) {
        waiting.push_back(mine);
        continue;
      }
      const Announced& send = sends ? mine : *found;
      const Announced& receive = sends ? *found : mine;
      expected.push_back({send.key, send.rank, receive.rank});
      expected.push_back({receive.key, receive.rank, send.rank});
      waiting.erase(found);
    }
    CAPTURE(seed);
    CHECK(expected.size() > 100);
    CHECK(ranks.take() == expected);
    std::vector<WaitingOperation> left;
    ranks.matcher.add_waiting(left);
    CHECK(left.size() == waiting.size());
    CHECK(ranks.matcher.idle() == waiting.empty());
  }
}
