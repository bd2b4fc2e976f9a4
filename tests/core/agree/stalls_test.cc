// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/stalls.h"

#include <catch2/catch.hpp>

namespace {

using namespace ronde;
using std::chrono::milliseconds;
using std::chrono::seconds;

const TimePoint kStart{std::chrono::hours(5)};

WaitingOperation waiting(const std::string& key, TimePoint since) {
  const std::string name = is_unnamed(key) ? std::string() : key;
  return {name, display_name(Collective::Allreduce, key), Collective::Allreduce, {0, 1}, {2, 3},
          since};
}

}  // namespace

TEST_CASE("only operations past the limit are reported") {
  StallInspector inspector(10, 0);
  const auto finding = inspector.inspect(
      {waiting("a", kStart), waiting(unnamed_key(4), kStart), waiting("b", kStart + seconds(5))},
      kStart + seconds(11));
  REQUIRE(finding.stalled.size() == 2);
  CHECK(finding.stalled[1].name.empty());
  CHECK(stall_text(finding.stalled) ==
        "allreduce 'a', allreduce number 4 without a name have waited up to 11.0 s for ranks 2,3 "
        "(submitted by ranks 0,1)");
}

TEST_CASE("the text of a stall has a line for each group of missing ranks, and few names") {
  std::vector<WaitingOperation> operations;
  for (int i = 0; i < 160; ++i) {
    operations.push_back(waiting("w" + std::to_string(i), kStart + milliseconds(i)));
  }
  operations.push_back(waiting("late", kStart + seconds(1)));
  operations.back().submitted_ranks = {0, 1, 2};
  operations.back().missing_ranks = {3};
  const auto finding = StallInspector(1, 0).inspect(operations, kStart + seconds(5));
  CHECK(finding.stalled.size() == 161);
  CHECK(stall_text(finding.stalled) ==
        "allreduce 'w0', allreduce 'w1', allreduce 'w2' and 157 more have waited up to 5.0 s for "
        "ranks 2,3 (submitted by ranks 0,1)\n"
        "allreduce 'late' has waited 4.0 s for rank 3 (submitted by ranks 0-2)");
}

TEST_CASE("the period of inspection follows the shorter limit, within reason") {
  CHECK(StallInspector(8, 600).period() == seconds(1));
  CHECK(StallInspector(0, 0.8).period() == milliseconds(100));
  CHECK(StallInspector(30, 600).period() == seconds(1));
  CHECK(StallInspector(1e-6, 0).period() == milliseconds(1));
  // A limit beyond what the clock can hold is a long time, not a negative one.
  StallInspector patient(1e300, 1e300);
  CHECK(patient.inspect({waiting("x", kStart)}, kStart + seconds(10)).stalled.empty());
}
