// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/prof_fixtures.h"
#include "tools/prof/hang/hang.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;
using Catch::StartsWith;

constexpr std::int64_t kNow = 100'000 * kMs;

/// What a rank did, by its age in seconds.
class Rank {
 public:
  explicit Rank(int size = 4) {
    for (int rank = 0; rank < size; ++rank) snapshot_.ranks_of_sets[0].push_back(rank);
    snapshot_.ranks = size;
    snapshot_.at_ns = kNow;
  }

  /// Submits an operation, with which more happens at that time.
  Rank& submits(const std::string& name, double age_s, std::vector<EventKind> then = {},
                Collective collective = Collective::Allreduce, int peer = -1) {
    Event& submitted = happens(EventKind::Submitted, ++operation_, age_s);
    submitted.text = name;
    submitted.collective = collective;
    submitted.rank = peer;
    for (const EventKind kind : then) happens(kind, operation_, age_s).bucket = operation_;
    return *this;
  }
  /// Waits for the operation that it has submitted last, or is in a span.
  Rank& waits(double age_s) { return happens(EventKind::WaitBegun, operation_, age_s), *this; }
  Rank& is_in_span(const std::string& name, double age_s) {
    return happens(EventKind::SpanBegun, 1, age_s).text = name, *this;
  }
  /// Is in the program since it has left a span.
  Rank& leaves_span(double age_s) { return happens(EventKind::SpanEnded, 1, age_s), *this; }

  std::string dump(int rank) {
    snapshot_.rank = rank;
    return to_json(snapshot_, "stall", "").dump();
  }

 private:
  Event& happens(EventKind kind, std::uint64_t operation, double age_s) {
    Event& event = snapshot_.events.emplace_back();
    event.kind = kind;
    event.operation = operation;
    event.time_ns = kNow - std::llround(age_s * 1e9);
    return event;
  }

  RankSnapshot snapshot_;
  std::uint64_t operation_ = 0;
};

class HungRun {
 public:
  void dump(int number, Rank rank) { write(number, rank.dump(number)); }

  void write(int rank, const std::string& text) {
    write_bytes(folder_ / ("rank" + std::to_string(rank) + ".json"), text);
  }

  std::string said() const {
    std::ostringstream out;
    ronde::prof::print_hang(folder_.path(), out);
    return out.str();
  }

 private:
  TemporaryFolder folder_;
};

const std::vector<EventKind> kCompleted = {EventKind::Completed};

/// Ranks 0, 1 and 3 wait for 'x'.
HungRun& others_wait(HungRun& run) {
  for (const int rank : {0, 1, 3}) {
    run.dump(rank, Rank().submits("x", rank == 3 ? 12.3 : 12, {EventKind::Announced}).waits(12));
  }
  return run;
}

TEST_CASE("a rank that has not submitted what others wait for is named, with what it does") {
  HungRun run;
  others_wait(run).dump(2, Rank().submits("x", 13, kCompleted).is_in_span("load batch", 12.5));
  CHECK_THAT(run.said(),
             StartsWith("rank 2 has not submitted allreduce 'x', which ranks 0, 1 and 3 wait for "
                        "since 12.3 s; it is in span 'load batch' since 12.5 s; its last operation "
                        "that completed was allreduce 'x' 13.0 s ago\n"));
  CHECK_THAT(run.said(), Contains("rank 0 (host ") &&
                             Contains(", dump by stall): waits for allreduce 'x' since 12.0 s, "
                                      "which rank 2 has not submitted"));
}

TEST_CASE("operations that the same ranks wait for are told once") {
  HungRun run;
  for (const int rank : {0, 1, 3}) {
    run.dump(rank, Rank()
                       .submits("x", 9, {EventKind::Announced})
                       .submits("y", 8)
                       .submits("z", 7, {}, Collective::Broadcast));
  }
  run.dump(2, Rank().is_in_span("load batch", 11).leaves_span(10));
  CHECK_THAT(run.said(),
             StartsWith("rank 2 has not submitted allreduce 'x' and 2 other operations, "
                        "which ranks 0, 1 and 3 wait for since 9.0 s; it is in the "
                        "program since 10.0 s\n"));
}

TEST_CASE("ranks that wait for each other are named as a cycle, and one behind it is not in it") {
  HungRun pair;
  for (const int rank : {0, 1}) pair.dump(rank, Rank(2).submits(rank == 0 ? "x" : "y", 5).waits(5));
  CHECK_THAT(pair.said(),
             StartsWith("ranks 0 and 1 wait for each other, a cycle: rank 0 waits for "
                        "allreduce 'x', which rank 1 has not submitted; rank 1 waits for "
                        "allreduce 'y', which rank 0 has not submitted. Submit operations"));
  HungRun run;
  for (const int rank : {0, 3}) {
    run.dump(rank, Rank().submits("x", 5).submits("y", 5).submits("z", 5).waits(5));
  }
  run.dump(1, Rank().submits("x", 5).waits(5));
  run.dump(2, Rank().submits("y", 5).waits(5));
  CHECK_THAT(run.said(), StartsWith("ranks 1 and 2 wait for each other, a cycle: rank 1 waits for "
                                    "allreduce 'x', which rank 2 has not submitted; rank 2 waits"));
}

TEST_CASE("a rank without a dump, or with a damaged one, is told as such") {
  HungRun run;
  CHECK_THAT(others_wait(run).said(), Contains("rank 2 has not submitted allreduce 'x'") &&
                                          Contains("it wrote no dump: it died or never got the "
                                                   "signal"));
  std::string text = Rank().dump(2);
  run.write(2, text.substr(0, 24));
  CHECK_THAT(run.said(),
             Contains("has a dump that cannot be read") && Contains("is cut at byte 24"));
  run.write(2, text.replace(text.find(":1"), 2, ":7"));
  CHECK_THAT(run.said(), Contains("has layout 7, and this ronde reads layout 1"));
}

TEST_CASE("a call of another kind under the same name is named") {
  HungRun run;
  others_wait(run).dump(2, Rank().submits("x", 12, {}, Collective::Broadcast).waits(12));
  CHECK_THAT(run.said(), Contains("rank 2 has not submitted allreduce 'x', which ranks 0, 1 and 3 "
                                  "wait for since 12.3 s; it has submitted broadcast 'x' instead"));
}

TEST_CASE("an operation that all ranks have submitted is told from one that a rank lacks") {
  HungRun run;
  for (const int rank : {0, 1, 3}) {
    std::vector<EventKind> then = {EventKind::Agreed};
    if (rank != 3) then.push_back(EventKind::Started);
    run.dump(rank, Rank().submits("x", 4, then).waits(4));
  }
  run.dump(2, Rank().submits("x", 3, kCompleted));
  CHECK_THAT(run.said(), StartsWith("allreduce 'x' was submitted by all its ranks and does not end "
                                    "on ranks 0, 1 and 3 since 4.0 s\n"));
  HungRun idle;
  for (int rank = 0; rank < 4; ++rank) idle.dump(rank, Rank());
  CHECK_THAT(idle.said(), StartsWith("no operation was in flight on any rank\n"));
}

TEST_CASE("sends and receives are told by themselves, and are missing on no rank") {
  HungRun run;
  run.dump(0, Rank(2).submits("x", 5, {}, Collective::Recv, 1).waits(5));
  run.dump(1, Rank(2).submits("x", 5, {}, Collective::Send, 0).waits(5));
  CHECK_THAT(run.said(),
             StartsWith("rank 0 waits for a message of rank 1: recv 'x' since 5.0 s\n"
                        "rank 1 waits to send a message to rank 0: send 'x' since 5.0 s\n\n"));
}

TEST_CASE("dumps of two runs, or none that can be read, are refused") {
  HungRun run;
  run.dump(0, Rank(4));
  run.dump(1, Rank(2));
  CHECK_THROWS_WITH(run.said(), Contains("rank1.json is of 2 ranks, and the others of 4"));
  HungRun damaged;
  damaged.write(0, "{]");
  CHECK_THROWS_WITH(damaged.said(), Contains("rank0.json is damaged at byte 2"));
}

}  // namespace
