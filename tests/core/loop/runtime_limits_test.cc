// SPDX-License-Identifier: Apache-2.0
// Groups that end because something took too long.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <latch>

#include "core/src/base/rank_list.h"
#include "tests/support/ranks/faulty_group.h"
#include "tests/support/ranks/results_of_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;

// The hosts of three ranks; on the second placement a leader reports which of its ranks are ready.
const std::vector<std::vector<int>> kPlacements = {{0, 0, 0}, {0, 1, 1}};

using Act = std::function<void(Runtime& runtime, int rank)>;

/// Something that some of three ranks wait for while the others have not submitted it.
struct Stalled {
  std::string name;
  std::string text;
  Collective kind;
  std::vector<int> submitted;
  std::vector<int> missing;
  Act act;  ///< on each rank, once it comes
};

void sum(Runtime& runtime, int) {
  std::vector<float> values(2, 1.0F);
  runtime.submit(sum_request(values, "x")).wait();
  check_equal(values[0], 3.0F, "the sum");
}

void add_set(Runtime& runtime, int) {
  runtime.create_process_set({0, 1, 2});
}

/// Rank 1 receives from `peer` what rank 2 sends.
Act receive_from(int peer) {
  return [peer](Runtime& runtime, int rank) {
    std::vector<float> values(2, 1.0F);
    if (rank == 1) runtime.submit(recv_request(values, peer, 8)).wait();
    if (rank == 2) runtime.submit(send_request(values, 1, 8)).wait();
  };
}

const std::string kCreation = "creating the process set of ranks 0,1,2";
const std::vector<Stalled> kStalled = {
    {"x", "allreduce 'x'", Collective::Allreduce, {0, 2}, {1}, sum},
    {"", kCreation, Collective::Barrier, {0, 2}, {1}, add_set},
    {"", "recv from rank 2 (tag 8)", Collective::Recv, {1}, {2}, receive_from(2)},
    {"", "send to rank 1 (tag 8)", Collective::Send, {2}, {1}, receive_from(2)},
    {"", "recv from any rank (tag 8)", Collective::Recv, {1}, {0, 2}, receive_from(kAnyRank)}};

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
      // Rank 0 may know of one of those that wait before it knows of all, or be slow to answer.
      const bool is_early = ranks_in(stalled.at(0).submitted_ranks).size() < row.submitted.size();
      const bool is_slow = stalled[0].text == "an answer of rank 0";
      if (is_early || is_slow || seen.size() == kReports) return;
      seen.push_back(stalled[0]);
      if (seen.size() == kReports) reported.count_down();
    };
    Runtime runtime(std::move(options));
    if (std::ranges::count(row.submitted, rank) == 0) reported.wait();
    row.act(runtime, rank);
    runtime.shutdown();
    check_equal(seen.size(), std::size_t{kReports}, "the number of reports of " + row.text);
    for (const StalledOperation& stalled : seen) {
      check_equal(stalled.name, row.name, "the name");
      check_equal(stalled.text, row.text, "the text");
      check(stalled.kind == row.kind, "the kind of " + row.text);
      check_equal(ranks_in(stalled.submitted_ranks), row.submitted, "who has come to " + row.text);
      check_equal(ranks_in(stalled.missing_ranks), row.missing, "who is missing in " + row.text);
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
  const auto deaths = on_each_rank(3, [&](int rank) {
    Config config = test_config();
    config.stall_warn_s = 0.0;
    config.stall_abort_s = waiting > 1 ? 3.0 : 1.0;  // in which all of them submit
    Runtime runtime(options_of(group, rank, config));
    const bool waits = std::ranges::count(row.submitted, rank) > 0;
    if (waits) together.arrive_and_wait();
    if (!waits) over.wait();
    const Death death = death_of([&] {
      row.act(runtime, rank);
      runtime.submit(barrier_request()).wait();
    });
    if (waits) over.count_down();
    return death;
  });
  CAPTURE(row.text, hosts);
  const std::string who =
      "for " + format_ranks(row.missing) + " (submitted by " + format_ranks(row.submitted) + ")";
  check_same_death(deaths, row.missing[0], {row.text + " has waited", who, "RONDE_STALL_ABORT_S"});
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

TEST_CASE("an operation in progress for too long fails the group") {
  const bool has_timeout = GENERATE(true, false);
  FaultyGroup all(2);
  all.faults[has_timeout ? 1 : 0]->hold_starts();
  Config config = test_config();
  config.stall_warn_s = 0.0;
  config.stall_abort_s = has_timeout ? 0.0 : 5.0;
  const auto deaths = on_each_rank(2, [&](int rank) {
    Runtime runtime(all.options(rank, config));
    std::vector<float> values(2, 1.0F);
    Request request = sum_request(values, "x");
    if (rank == 0 && has_timeout) request.timeout = std::chrono::seconds(1);
    // Rank 0 only begins to count once it has heard of what rank 1 submitted before the barrier.
    if (rank == 0) runtime.run(barrier_request());
    const Work work = runtime.submit(request);
    if (rank == 1) runtime.run(barrier_request());
    return death_of([&] { work.wait(); });
  });
  // Either rank may be the first to see the stall limit pass.
  check_same_death(deaths, has_timeout ? 0 : deaths[0].rank,
                   {has_timeout ? "had begun on every rank" : "has been in progress"});
}

TEST_CASE("an operation may wait as long as the time-out that its rank expects") {
  const inproc::Group group(std::vector<int>{0, 0});
  std::latch over(1);
  run_ranks(2, [&](int rank) {
    Config config = test_config();
    config.stall_warn_s = config.stall_abort_s = 0.1;
    RuntimeOptions options = options_of(group, rank, config);
    options.stall_slack = std::chrono::seconds(1);
    std::atomic<bool> is_over{rank == 0};
    const auto end_wait = [&] {
      if (!is_over.exchange(true)) over.count_down();
    };
    options.on_stall = [&](const std::vector<StalledOperation>& stalled) {
      // Beyond the limit of rank 0, and the later one of rank 1.
      if (stalled.at(0).waiting > std::chrono::seconds(3)) end_wait();
    };
    Runtime runtime(std::move(options));
    if (rank == 1) {
      runtime.expect_timeout(std::chrono::hours(1));
      runtime.expect_timeout(std::chrono::seconds(0));  // the longest counts
    } else {
      over.wait();
    }
    std::vector<float> values(2, 1.0F);
    try {
      runtime.run(sum_request(values, "x"));
    } catch (...) {
      end_wait();
      throw;
    }
    check_equal(values[0], 2.0F, "the sum");
    runtime.shutdown();
  });
}

TEST_CASE("a time-out that one rank expects is known to all once its next operation is done") {
  const inproc::Group group({0, 1, 1, 2});
  run_ranks(4, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.config.stall_abort_s = 60;
    options.stall_slack = std::chrono::seconds(1);
    Runtime runtime(std::move(options));
    if (rank == 2) runtime.expect_timeout(std::chrono::hours(1));
    runtime.run(barrier_request());
    check_equal(counter_of(runtime, "coordinator", "stall_limit_s"), 3601U, "the limit");
    runtime.shutdown();
  });
}

TEST_CASE("ranks that wait for a rank 0 that hangs warn by their own clocks") {
  const bool in_shutdown = GENERATE(false, true);
  const inproc::Group group(std::vector<int>{0, 1, 1});
  std::latch is_prepared(1), hangs(1), warned(2);
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.shutdown_timeout_s = 0.0;
    config.stall_warn_s = 0.1;
    config.stall_abort_s = 0.0;
    RuntimeOptions options = options_of(group, rank, config);
    bool has_warned = false;
    options.on_stall = [&](const std::vector<StalledOperation>& stalled) {
      if (has_warned || stalled.at(0).text != "an answer of rank 0") return;
      has_warned = true;
      check(ranks_in(stalled[0].missing_ranks) == std::vector<int>{0}, "who is missing");
      warned.count_down();
    };
    Runtime runtime(std::move(options));
    std::vector<float> values(1, 1.0F);
    if (rank > 0) is_prepared.wait();
    const Work work = runtime.submit(sum_request(values, "x"));
    if (rank == 0) {
      work.on_done([&] {  // on the loop, which is then as that of a stopped process
        hangs.count_down();
        warned.wait();
      });
      is_prepared.count_down();
    }
    hangs.wait();
    if (!in_shutdown) runtime.submit(barrier_request()).wait();
    runtime.shutdown();
  });
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
