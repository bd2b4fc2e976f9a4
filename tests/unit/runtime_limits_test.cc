// SPDX-License-Identifier: Apache-2.0
// Groups that end because something took too long.
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <latch>
#include <memory>
#include <mutex>
#include <vector>

#include "ronde/error.h"
#include "tests/unit/faulty_group.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;

// The hosts of three ranks. A leader is to tell which of its ranks have come.
const std::vector<int> kOneHost = {0, 0, 0};
const std::vector<int> kLeaderAndOne = {0, 1, 1};

}  // namespace

TEST_CASE("a stall is reported on every rank, again and again, and harms nothing") {
  constexpr int kReports = 3;
  const inproc::Group group(GENERATE(kOneHost, kLeaderAndOne));
  std::latch reported(3 * kReports);
  std::mutex mutex;
  std::vector<StalledOperation> seen;
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.stall_warn_s = 0.02;
    RuntimeOptions options = options_of(group, rank, config);
    int reports = 0;
    options.on_stall = [&](const std::vector<StalledOperation>& stalled) {
      if (++reports > kReports) return;
      const std::lock_guard lock(mutex);
      seen.insert(seen.end(), stalled.begin(), stalled.end());
      reported.count_down();
    };
    Runtime runtime(std::move(options));
    std::vector<float> values(2, 1.0F);
    if (rank == 1) reported.wait();
    runtime.submit(sum_request(values, "x")).wait();
    check(values[0] == 3.0F, "the sum");
    runtime.shutdown();
  });
  CHECK(seen.size() >= 3 * kReports);
  for (const StalledOperation& stalled : seen) {
    CHECK(stalled.name == "x");
    CHECK(stalled.text == "allreduce 'x'");
    CHECK(std::find(stalled.missing_ranks.begin(), stalled.missing_ranks.end(), 1) !=
          stalled.missing_ranks.end());
    CHECK(stalled.waiting >= milliseconds(20));
  }
  CHECK(seen.back().missing_ranks == std::vector<int>{1});
  CHECK(seen.back().submitted_ranks == std::vector<int>{0, 2});
}

TEST_CASE("a stall past the limit fails the group, naming who never submitted") {
  const inproc::Group group(GENERATE(kOneHost, kLeaderAndOne));
  std::vector<Death> deaths(3);
  std::barrier together(2);
  std::latch over(2);
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.stall_warn_s = 0.0;
    config.stall_abort_s = 1.0;
    Runtime runtime(options_of(group, rank, config));
    std::vector<float> values(2, 1.0F);
    // The limit begins with the first submission, and only rank 2 is to miss it.
    if (rank == 2) {
      over.wait();
    } else {
      together.arrive_and_wait();
    }
    deaths[static_cast<std::size_t>(rank)] = death_in_sum(runtime, values);
    if (rank != 2) over.count_down();
  });
  for (const Death& death : deaths) {
    CHECK(death == deaths[0]);
    CHECK(death.rank == 2);
    CHECK_THAT(death.text, Catch::Contains("allreduce 'x' has waited"));
    CHECK_THAT(death.text, Catch::Contains("for rank 2 (submitted by ranks 0,1)"));
    CHECK_THAT(death.text, Catch::Contains("RONDE_STALL_ABORT_S"));
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
