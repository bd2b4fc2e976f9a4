// SPDX-License-Identifier: Apache-2.0
// `ronde prof hang`.
#include <catch2/catch.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/prof_fixtures.h"
#include "tools/prof/hang/hang.h"

namespace {

using Catch::Contains;
using Catch::StartsWith;
using ronde::test::Json;
using ronde::test::TemporaryFolder;
using ronde::test::write_bytes;

constexpr double kNow = 100e6;

Json operation(const std::string& kind, const std::string& name, const std::string& state,
               double age_s) {
  return {{"number", 1},
          {"kind", kind},
          {"name", name},
          {"set", 0},
          {"ranks", {0, 1, 2, 3}},
          {"state", state},
          {"submitted_us", kNow - age_s * 1e6},
          {"completed_us", kNow - age_s * 1e6}};
}

Json thread(const std::string& doing, const std::string& what, double age_s) {
  return {{"thread", 0}, {"doing", doing}, {"what", what}, {"since_us", kNow - age_s * 1e6}};
}

class HungRun {
 public:
  void dump(int rank, const std::vector<Json>& threads, const std::vector<Json>& operations,
            int ranks = 4) {
    write(rank, Json{{"ronde_dump", 1},
                     {"rank", rank},
                     {"ranks", ranks},
                     {"host", "n1"},
                     {"pid", 100 + rank},
                     {"reason", "stall"},
                     {"text", ""},
                     {"at_us", kNow},
                     {"threads", threads},
                     {"operations", operations}}
                    .dump());
  }

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

/// Ranks 0, 1 and 3 wait for 'x'.
HungRun& others_wait(HungRun& run) {
  for (const int rank : {0, 1, 3}) {
    run.dump(rank, {thread("wait", "allreduce 'x'", 12)},
             {operation("allreduce", "x", "announced", rank == 3 ? 12.3 : 12.0)});
  }
  return run;
}

TEST_CASE("a rank that has not submitted what others wait for is named, with what it does") {
  HungRun run;
  others_wait(run).dump(2, {thread("span", "load batch", 12.5)},
                        {operation("allreduce", "x", "completed", 13)});
  CHECK_THAT(run.said(),
             StartsWith("rank 2 has not submitted allreduce 'x', which ranks 0, 1 and 3 wait for "
                        "since 12.3 s; it is in span 'load batch' since 12.5 s; its last operation "
                        "that completed was allreduce 'x' 13.0 s ago\n"));
  CHECK_THAT(run.said(), Contains("rank 0 (host n1, pid 100, dump by stall): waits for allreduce "
                                  "'x' since 12.0 s, which rank 2 has not submitted"));
}

TEST_CASE("operations that the same ranks wait for are told once") {
  HungRun run;
  for (const int rank : {0, 1, 3}) {
    run.dump(
        rank, {},
        {operation("allreduce", "x", "announced", 9), operation("allreduce", "y", "submitted", 8),
         operation("broadcast", "z", "submitted", 7)});
  }
  run.dump(2, {thread("program", "", 10)}, {});
  CHECK_THAT(run.said(),
             StartsWith("rank 2 has not submitted allreduce 'x' and 2 other operations, "
                        "which ranks 0, 1 and 3 wait for since 9.0 s; it is in the "
                        "program since 10.0 s\n"));
}

TEST_CASE("ranks that wait for each other are named as a cycle") {
  HungRun run;
  for (const int rank : {0, 1}) {
    run.dump(rank, {thread("wait", rank == 0 ? "allreduce 'x'" : "allreduce 'y'", 5)},
             {operation("allreduce", rank == 0 ? "x" : "y", "announced", 5)}, 2);
  }
  // The operations are of two ranks.
  std::string text = run.said();
  CHECK_THAT(text, StartsWith("ranks 0 and 1 wait for each other, a cycle: rank 0 waits for "
                              "allreduce 'x', which rank 1 has not submitted; rank 1 waits for "
                              "allreduce 'y', which rank 0 has not submitted. Submit operations"));
}

TEST_CASE("a rank that waits behind a cycle is not in it") {
  HungRun run;
  const auto submitted = [](const std::vector<std::string>& names) {
    std::vector<Json> operations;
    for (const std::string& name : names) {
      operations.push_back(operation("allreduce", name, "announced", 5));
    }
    return operations;
  };
  run.dump(0, {thread("wait", "allreduce 'z'", 5)}, submitted({"x", "y", "z"}));
  run.dump(1, {thread("wait", "allreduce 'x'", 5)}, submitted({"x"}));
  run.dump(2, {thread("wait", "allreduce 'y'", 5)}, submitted({"y"}));
  run.dump(3, {thread("wait", "allreduce 'z'", 5)}, submitted({"x", "y", "z"}));
  CHECK_THAT(run.said(), StartsWith("ranks 1 and 2 wait for each other, a cycle: rank 1 waits for "
                                    "allreduce 'x', which rank 2 has not submitted; rank 2 waits"));
}

TEST_CASE("a rank without a dump, or with a damaged one, is told as such") {
  HungRun run;
  CHECK_THAT(others_wait(run).said(), Contains("rank 2 has not submitted allreduce 'x'") &&
                                          Contains("it wrote no dump: it died or never got the "
                                                   "signal"));
  run.write(2, R"({"ronde_dump": 1, "rank")");
  CHECK_THAT(run.said(),
             Contains("has a dump that cannot be read") && Contains("is cut at byte 24"));
  run.write(2, R"({"ronde_dump": 7})");
  CHECK_THAT(run.said(), Contains("has layout 7, and this ronde reads layout 1"));
}

TEST_CASE("a call of another kind under the same name is named") {
  HungRun run;
  others_wait(run).dump(2, {thread("wait", "broadcast 'x'", 12)},
                        {operation("broadcast", "x", "announced", 12)});
  CHECK_THAT(run.said(), Contains("rank 2 has not submitted allreduce 'x', which ranks 0, 1 and 3 "
                                  "wait for since 12.3 s; it has submitted broadcast 'x' instead"));
}

TEST_CASE("an operation that all ranks have submitted is told from one that a rank lacks") {
  HungRun run;
  for (const int rank : {0, 1, 3}) {
    run.dump(rank, {thread("wait", "allreduce 'x'", 4)},
             {operation("allreduce", "x", rank == 3 ? "agreed" : "started", 4)});
  }
  run.dump(2, {thread("program", "", 3)}, {operation("allreduce", "x", "completed", 3)});
  CHECK_THAT(run.said(), StartsWith("allreduce 'x' was submitted by all its ranks and does not end "
                                    "on ranks 0, 1 and 3 since 4.0 s\n"));
  HungRun idle;
  for (int rank = 0; rank < 4; ++rank) idle.dump(rank, {thread("program", "", 1)}, {});
  CHECK_THAT(idle.said(), StartsWith("no operation was in flight on any rank\n"));
}

TEST_CASE("sends and receives are told by themselves, and are missing on no rank") {
  HungRun run;
  for (const int rank : {0, 1}) {
    Json message = operation(rank == 0 ? "recv" : "send", "x", "submitted", 5);
    message["ranks"] = {rank, 1 - rank};
    message["peer"] = 1 - rank;
    run.dump(rank, {thread("wait", rank == 0 ? "recv 'x'" : "send 'x'", 5)}, {message}, 2);
  }
  CHECK_THAT(run.said(),
             StartsWith("rank 0 waits for a message of rank 1: recv 'x' since 5.0 s\n"
                        "rank 1 waits to send a message to rank 0: send 'x' since 5.0 s\n\n"));
}

TEST_CASE("dumps of two runs, or none that can be read, are refused") {
  HungRun run;
  run.dump(0, {}, {}, 4);
  run.dump(1, {}, {}, 2);
  CHECK_THROWS_WITH(run.said(), Contains("rank1.json is of 2 ranks, and the others of 4"));
  HungRun damaged;
  damaged.write(0, "{]");
  CHECK_THROWS_WITH(damaged.said(), Contains("rank0.json is damaged at byte 2"));
}

}  // namespace
