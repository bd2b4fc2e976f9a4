// SPDX-License-Identifier: Apache-2.0
// Groups that end because something took too long.
#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <functional>
#include <latch>
#include <memory>
#include <vector>

#include "core/src/rank_list.h"
#include "ronde/error.h"
#include "tests/unit/faulty_group.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;

// The hosts of three ranks. A leader is to tell which of its ranks have come.
const std::vector<std::vector<int>> kPlacements = {{0, 0, 0}, {0, 1, 1}};

/// What ranks of three wait for while others have not come to it.
struct Stalled {
  std::string name;
  std::string text;
  Collective kind;
  std::vector<int> submitted;
  std::vector<int> missing;
  std::function<void(Runtime& runtime, int rank)> act;  ///< on each rank, once it comes
};

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// Rank 1 receives what rank 2 sends.
void receive_from(int peer, Runtime& runtime, int rank) {
  std::vector<float> values(2, 1.0F);
  if (rank == 1) runtime.submit(recv_request(values, peer, 8)).wait();
  if (rank == 2) runtime.submit(send_request(values, 1, 8)).wait();
}

const std::vector<Stalled> kStalled = {
    {"x",
     "allreduce 'x'",
     Collective::Allreduce,
     {0, 2},
     {1},
     [](Runtime& runtime, int) {
       std::vector<float> values(2, 1.0F);
       runtime.submit(sum_request(values, "x")).wait();
       check_equal(values[0], 3.0F, "the sum");
     }},
    {"",
     "creating the process set of ranks 0,1,2",
     Collective::Barrier,
     {0, 2},
     {1},
     [](Runtime& runtime, int) {
       runtime.create_process_set({0, 1, 2});
     }},
    {"",
     "recv from rank 2 (tag 8)",
     Collective::Recv,
     {1},
     {2},
     [](Runtime& runtime, int rank) { receive_from(2, runtime, rank); }},
    {"",
     "send to rank 1 (tag 8)",
     Collective::Send,
     {2},
     {1},
     [](Runtime& runtime, int rank) { receive_from(2, runtime, rank); }},
    {"",
     "recv from any rank (tag 8)",
     Collective::Recv,
     {1},
     {0, 2},
     [](Runtime& runtime, int rank) { receive_from(kAnyRank, runtime, rank); }}};

/// Reports to every rank, again and again, until the late ones come.
void check_reported(const Stalled& row, const std::vector<int>& hosts) {
  constexpr int kReports = 3;
  const inproc::Group group(hosts);
  std::latch reported(3);
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.stall_warn_s = 0.02;
    RuntimeOptions options = options_of(group, rank, config);
    std::vector<StalledOperation> seen;
    options.on_stall = [&](const std::vector<StalledOperation>& stalled) {
      // Rank 0 may know of one of those that wait before it knows of all.
      const bool is_early = stalled.at(0).submitted_ranks.size() < row.submitted.size();
      if (is_early || seen.size() == kReports) return;
      seen.push_back(stalled[0]);
      if (seen.size() == kReports) reported.count_down();
    };
    Runtime runtime(std::move(options));
    if (!contains(row.submitted, rank)) reported.wait();
    row.act(runtime, rank);
    runtime.shutdown();
    check_equal(seen.size(), std::size_t{kReports}, "the number of reports of " + row.text);
    for (const StalledOperation& stalled : seen) {
      check_equal(stalled.name, row.name, "the name");
      check_equal(stalled.text, row.text, "the text");
      check(stalled.kind == row.kind, "the kind of " + row.text);
      check_equal(stalled.submitted_ranks, row.submitted, "who has come to " + row.text);
      check_equal(stalled.missing_ranks, row.missing, "who is missing in " + row.text);
      check(stalled.waiting >= milliseconds(20), "it was old enough");
    }
  });
}

/// Ends the group at the limit on every rank alike. The limit begins with the first rank that
/// waits, so that those begin together.
void check_fatal(const Stalled& row, const std::vector<int>& hosts) {
  const inproc::Group group(hosts);
  const auto waiting = static_cast<std::ptrdiff_t>(row.submitted.size());
  std::barrier together(waiting);
  std::latch over(waiting);
  std::vector<Death> deaths(3);
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.stall_warn_s = 0.0;
    config.stall_abort_s = 0.5;
    Runtime runtime(options_of(group, rank, config));
    const bool waits = contains(row.submitted, rank);
    if (waits) together.arrive_and_wait();
    if (!waits) over.wait();
    deaths[static_cast<std::size_t>(rank)] = death_of([&] {
      row.act(runtime, rank);
      runtime.submit(barrier_request()).wait();
    });
    if (waits) over.count_down();
  });
  CAPTURE(row.text, hosts);
  for (const Death& death : deaths) {
    CHECK(death == deaths[0]);
    CHECK(death.rank == row.missing[0]);
    CHECK_THAT(death.text, Catch::Contains(row.text + " has waited"));
    CHECK_THAT(death.text, Catch::Contains("for " + format_ranks(row.missing) + " (submitted by " +
                                           format_ranks(row.submitted) + ")"));
    CHECK_THAT(death.text, Catch::Contains("RONDE_STALL_ABORT_S"));
  }
}

}  // namespace

TEST_CASE("a stall is reported on every rank, again and again, and harms nothing") {
  for (const std::vector<int>& hosts : kPlacements) {
    for (const Stalled& row : kStalled) check_reported(row, hosts);
  }
}

TEST_CASE("a stall past the limit fails the group, naming who never submitted") {
  for (const std::vector<int>& hosts : kPlacements) {
    for (std::size_t i = 0; i < 4; ++i) check_fatal(kStalled[i], hosts);
  }
}

TEST_CASE("a timeout that passes once an operation has begun fails the group") {
  FaultyGroup all(2);
  all.faults[1]->hold_starts();
  std::vector<Death> deaths(2);
  run_ranks(2, [&](int rank) {
    Runtime runtime(all.options(rank));
    std::vector<float> values(2, 1.0F);
    Request request = sum_request(values, "x");
    // Rank 0 may only begin to count once all have come.
    if (rank == 0) request.timeout = std::chrono::seconds(1);
    deaths[static_cast<std::size_t>(rank)] = death_of([&] { runtime.submit(request).wait(); });
  });
  CHECK(deaths[0] == deaths[1]);
  CHECK(deaths[0].rank == 0);
  CHECK_THAT(deaths[0].text, Catch::Contains("had begun on every rank"));
}

TEST_CASE("an operation in progress for longer than the stall limit fails the group") {
  FaultyGroup all(2);
  all.faults[0]->hold_starts();
  std::vector<Death> deaths(2);
  run_ranks(2, [&](int rank) {
    Config config = test_config();
    config.stall_warn_s = 0.0;
    config.stall_abort_s = 0.3;
    Runtime runtime(all.options(rank, config));
    std::vector<float> values(2, 1.0F);
    deaths[static_cast<std::size_t>(rank)] = death_in_sum(runtime, values);
  });
  CHECK(deaths[0] == deaths[1]);
  CHECK_THAT(deaths[0].text, Catch::Contains("has been in progress"));
}

TEST_CASE("a start that hangs in a library is given up in time") {
  const inproc::Group group(1);
  // Shared with the thread that is given up, which outlives the Runtime.
  const auto over = std::make_shared<std::latch>(1);
  const auto gone = std::make_shared<std::latch>(1);
  std::shared_ptr<void> token(nullptr, [gone](void*) { gone->count_down(); });
  RuntimeOptions options = options_of(group, 0);
  options.config.init_timeout_s = 0.1;
  options.make_transport = [over, token, make = group.transport(0)] {
    over->wait();  // as MPI_Init does for a rank that never comes
    return make();
  };
  token.reset();
  const Death death = death_of([&] { const Runtime runtime(std::move(options)); });
  CHECK(death.rank == -1);
  CHECK_THAT(death.text, Catch::Contains("RONDE_INIT_TIMEOUT_S"));
  over->count_down();
  gone->wait();
}
