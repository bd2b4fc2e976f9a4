// SPDX-License-Identifier: Apache-2.0
// Which rank the ranks of a failed group blame: no engine runs here.
#include "core/src/group/failure_resolver.h"

#include <catch2/catch.hpp>
#include <latch>
#include <map>

#include "tests/support/ranks/results_of_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Clock = std::chrono::steady_clock;

const std::vector<int> kHosts = {0, 0, 1, 1, 1};  // ranks 3 and 4 speak with rank 0 by rank 2
constexpr int kSize = 5;

/// The first failure that this rank sees, as its loop would throw it.
GroupFailure next_failure(const ControlTree& tree, const FailureResolver& resolver) {
  for (;;) {
    const Incoming incoming = tree.transport().receive(Clock::now() + std::chrono::seconds(20));
    const bool is_resolved = incoming.peer == tree.parent();
    if (incoming.kind == Incoming::Kind::PeerLost) {
      return {resolver.loss_of(incoming), is_resolved};
    }
    check(incoming.kind == Incoming::Kind::Message, "a failure has come in time");
    const auto failure = std::get<FailureMessage>(decode(incoming.bytes));
    return {failure, is_resolved && !failure.overdue};
  }
}

/// Returns which rank each rank blames where those in `seen_by` have seen a failure themselves and
/// the others receive it. Rank `killed`, if any, is dead before; rank `stopped` does nothing.
std::vector<FailureMessage> resolutions(const std::map<int, FailureMessage>& seen_by,
                                        int killed = -1, int stopped = -1) {
  inproc::Group group(kHosts);
  std::vector<ControlTree> trees(kSize);
  for (int rank = 0; rank < kSize; ++rank) {
    trees[static_cast<std::size_t>(rank)].open(group.transport(rank)());
  }
  if (killed >= 0) group.kill(killed);
  const Logger log(LogLevel::Off);
  std::latch all_run(kSize);  // as rank 0 waits for what others see for a moment only
  return on_each_rank(kSize, [&](int rank) {
    all_run.arrive_and_wait();
    if (rank == killed || rank == stopped) return FailureMessage();
    const ControlTree& tree = trees[static_cast<std::size_t>(rank)];
    FailureResolver resolver(tree, log, " (it waited)");
    const auto seen = seen_by.find(rank);
    return resolver.resolve_failure(
        seen == seen_by.end() ? next_failure(tree, resolver) : GroupFailure{seen->second}, false);
  });
}

void check_all_blame(const std::vector<FailureMessage>& resolutions, int culprit,
                     const std::string& part) {
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == culprit) continue;
    const FailureMessage& resolution = resolutions[static_cast<std::size_t>(rank)];
    CAPTURE(rank, resolution.text);
    CHECK(resolution.rank == culprit);
    CHECK_THAT(resolution.text, Catch::Contains(part));
    CHECK(resolution.certain);
  }
}

}  // namespace

TEST_CASE("a rank that reports a failure is blamed by all if no death is noticed") {
  check_all_blame(resolutions({{4, {4, "its backend failed", false}}}), 4, "its backend failed");
}

TEST_CASE("a death noticed after another rank's report is what all ranks name") {
  const auto failed = [](int rank) { return FailureMessage{rank, "its backend failed", false}; };
  check_all_blame(resolutions({{1, failed(1)}}, 3), 3, "rank 3 was lost");
  // The leader has reported before it sees the death below it, and so has rank 0.
  check_all_blame(resolutions({{2, failed(2)}}, 3), 3, "rank 3 was lost");
  check_all_blame(resolutions({{0, failed(0)}}, 1), 1, "rank 1 was lost");
}

TEST_CASE("of an operation that takes too long all blame the rank that is stopped") {
  const auto late = [](int rank) {
    return FailureMessage{rank, "it takes too long", false, false, true};
  };
  const std::map<int, FailureMessage> all = {
      {0, late(0)}, {1, late(1)}, {2, late(2)}, {3, late(3)}, {4, late(4)}};
  for (const int stopped : {0, 2, 3}) {
    check_all_blame(resolutions(all, -1, stopped), stopped, "not answer");
  }
  for (const int first : {0, 4}) {
    check_all_blame(resolutions({{first, late(first)}}, -1, 3), 3, "not answer");
  }
  check_all_blame(resolutions({{3, late(3)}}), 3, "although all ranks answer");
}

TEST_CASE("ranks that lose rank 0 blame it without asking, also those below a leader") {
  check_all_blame(resolutions({}, 0), 0, "rank 0 was lost");
}

TEST_CASE("a rank that leaves waits for no answer") {
  const inproc::Group group(2);
  ControlTree arbiter, leaving;
  arbiter.open(group.transport(0)());
  leaving.open(group.transport(1)());
  const Logger log(LogLevel::Off);
  const FailureMessage own =
      FailureResolver(leaving, log, "").resolve_failure({{1, "rank 1 left"}}, true);
  CHECK(own.text == "rank 1 left");
  const Incoming heard = arbiter.transport().receive(Clock::now() + std::chrono::seconds(20));
  CHECK(std::get<FailureMessage>(decode(heard.bytes)).text == "rank 1 left");
}
