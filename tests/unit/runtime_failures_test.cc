// SPDX-License-Identifier: Apache-2.0
// How groups end: by agreement, or by the death of a rank, which every survivor must learn of.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <latch>
#include <mutex>
#include <new>
#include <thread>

#include "ronde/error.h"
#include "tests/support/case_table.h"
#include "tests/support/faulty_backend.h"
#include "tests/support/ranks.h"
#include "tests/support/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;

/// Waits for what can only end with the group.
Death death_in_barrier(Runtime& runtime) {
  return death_of([&] { runtime.submit(barrier_request()).wait(); });
}

Death death_in_sum(Runtime& runtime, std::vector<float>& values) {
  return death_of([&] { runtime.submit(sum_request(values, "x")).wait(); });
}

/// A group whose backends have faults.
struct FaultyGroup {
  explicit FaultyGroup(int size) : group(size) {
    for (int rank = 0; rank < size; ++rank) faults.push_back(std::make_shared<Faults>());
  }

  RuntimeOptions options(int rank, Config config = test_config()) const {
    RuntimeOptions made = options_of(group, rank, std::move(config));
    made.backends["inproc"] =
        faulty_factory(group.backend_factory(), faults[static_cast<std::size_t>(rank)]);
    return made;
  }

  inproc::Group group;
  std::vector<std::shared_ptr<Faults>> faults;
};

enum class When { Idle, Negotiating, InProgress };
enum class How { Killed, Left };

/// Rank `victim` of three ends in the way said; what the others are told.
std::vector<Death> deaths_after(int victim, When when, How how) {
  FaultyGroup all(3);
  Faults& faults = *all.faults[static_cast<std::size_t>(victim)];
  if (when == When::InProgress) faults.hold_starts();
  std::latch ready(3);
  std::vector<Death> deaths(3);
  run_ranks(3, [&](int rank) {
    Runtime runtime(all.options(rank));
    std::vector<float> values(4, 1.0F);
    if (rank == victim) {
      Work work;
      if (when == When::InProgress) {
        work = runtime.submit(sum_request(values, "x"));
        faults.wait_begun(1);
      }
      ready.arrive_and_wait();
      if (how == How::Killed) all.group.kill(rank);
      return;
    }
    Work work;
    if (when != When::Idle) work = runtime.submit(sum_request(values, "x"));
    ready.arrive_and_wait();
    Death death = when == When::Idle ? death_in_barrier(runtime) : death_of([&] { work.wait(); });
    deaths[static_cast<std::size_t>(rank)] = death;
    // Everything later fails alike; shutdown does nothing.
    check(death_in_sum(runtime, values) == death, "later operations throw the same");
    runtime.shutdown();
    runtime.shutdown();
  });
  deaths.erase(deaths.begin() + victim);
  return deaths;
}

void check_deaths(int victim, When when, How how) {
  const std::string expected = "rank " + std::to_string(victim) +
                               (how == How::Killed ? " was lost: it was killed" : " left without");
  for (const Death& death : deaths_after(victim, when, how)) {
    CHECK(death.rank == victim);
    CHECK_THAT(death.text, Catch::Contains(expected));
    CHECK_THAT(death.text, Catch::Contains("The group is dead"));
  }
}

const bool registered = [] {
  for (const int victim : {0, 1, 2}) {
    const std::string who = "rank " + std::to_string(victim);
    const auto add = [&](const std::string& what, When when, How how) {
      add_case(who + what, "", [=] { check_deaths(victim, when, how); });
    };
    add(" is killed while all are idle", When::Idle, How::Killed);
    add(" is killed while the others negotiate", When::Negotiating, How::Killed);
    add(" is killed while an operation is in progress", When::InProgress, How::Killed);
    add(" leaves without shutdown while all are idle", When::Idle, How::Left);
    add(" leaves without shutdown while the others negotiate", When::Negotiating, How::Left);
    add(" leaves without shutdown while an operation is in progress", When::InProgress, How::Left);
  }
  return true;
}();

/// A backend of `culprit` goes wrong as `arm` says: every rank gets the same error.
void check_backend_failure(int culprit, const std::function<void(Faults&)>& arm) {
  FaultyGroup all(3);
  arm(*all.faults[static_cast<std::size_t>(culprit)]);
  std::vector<Death> deaths(3);
  run_ranks(3, [&](int rank) {
    Runtime runtime(all.options(rank));
    std::vector<float> values(4, 1.0F);
    deaths[static_cast<std::size_t>(rank)] = death_in_sum(runtime, values);
    check(all.faults[static_cast<std::size_t>(rank)]->aborted(), "the backend was aborted");
  });
  const std::string expected = "rank " + std::to_string(culprit) + " failed: the cable is cut";
  for (const Death& death : deaths) {
    CHECK(death == deaths[0]);
    CHECK(death.rank == culprit);
    CHECK_THAT(death.text, Catch::Contains(expected));
  }
}

}  // namespace

TEST_CASE("a backend that fails when an operation begins fails every rank alike") {
  for (const int culprit : {0, 2}) {
    check_backend_failure(culprit,
                          [](Faults& faults) { faults.fail_start(1, "the cable is cut"); });
  }
}

TEST_CASE("a backend that fails in an operation fails every rank alike") {
  for (const int culprit : {0, 1}) {
    check_backend_failure(culprit, [](Faults& faults) {
      faults.hold_starts();
      faults.fail_poll(3, "the cable is cut");
    });
  }
}

TEST_CASE("a backend that cannot be closed fails the shutdown of its rank") {
  FaultyGroup all(2);
  all.faults[1]->fail_close("the cable is cut");
  run_ranks(2, [&](int rank) {
    Runtime runtime(all.options(rank));
    if (rank == 0) return runtime.shutdown();
    const Death death = death_of([&] { runtime.shutdown(); });
    check(death.rank == 1, "itself");
    check_contains(death.text, "rank 1 cannot close its backend: the cable is cut");
  });
}

TEST_CASE("memory of a failed operation is not touched once it is done") {
  FaultyGroup all(2);
  all.faults[1]->hold_starts();
  std::latch freed(1);
  run_ranks(2, [&](int rank) {
    Runtime runtime(all.options(rank));
    auto values = std::make_unique<std::vector<float>>(1000, 1.0F);
    const Work work = runtime.submit(sum_request(*values, "x"));
    if (rank == 1) {
      all.faults[1]->wait_begun(1);
      runtime.abort("enough");
      death_of([&] { work.wait(); });
      freed.wait();
      all.faults[1]->release();
    } else {
      death_of([&] { work.wait(); });
      check(*values == std::vector<float>(1000, 1.0F), "untouched");
      values.reset();
      freed.count_down();
    }
  });
}

TEST_CASE("a result that cannot be allocated fails the group, and every waiter is told") {
  std::vector<Death> deaths(2);
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    const float mine = 1.0F;
    std::vector<float> all(2);
    Request request;
    request.kind = Collective::Allgather;
    request.shape = {1};
    request.input = &mine;
    request.allocate_output = [&](const std::vector<std::int64_t>&) -> void* {
      if (rank == 1) throw std::bad_alloc();
      return all.data();
    };
    deaths[static_cast<std::size_t>(rank)] =
        death_of([&] { runtime.submit(std::move(request)).wait(); });
  });
  CHECK(deaths[0] == deaths[1]);
  CHECK(deaths[0].rank == 1);
}

TEST_CASE("shutdown can be called again, and by several threads") {
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    std::thread other([&] { runtime.shutdown(); });
    runtime.shutdown();
    other.join();
    runtime.shutdown();
    check_contains(text_of<UsageError>([&] { runtime.submit(barrier_request()); }),
                   "shutdown() has been called");
  });
}

TEST_CASE("operations that every rank has submitted end before a shutdown does") {
  const inproc::Group group(3);
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.cycle_time_ms = 10000.0;
    Runtime runtime(options_of(group, rank, config));
    std::vector<float> values(5000, 1.0F);
    const Work work = runtime.submit(sum_request(values, "x"));
    runtime.shutdown();
    check(work.done(), "done by then");
    work.wait();
    check(values[4999] == 3.0F, "the sum");
  });
}

TEST_CASE("a rank that shuts down while another waits for it is named on all") {
  for (const int leaver : {0, 1}) {
    const inproc::Group group(2);
    std::vector<Death> deaths(2);
    run_ranks(2, [&](int rank) {
      Runtime runtime(options_of(group, rank));
      deaths[static_cast<std::size_t>(rank)] =
          rank == leaver ? death_of([&] { runtime.shutdown(); }) : death_in_barrier(runtime);
    });
    CHECK(deaths[0] == deaths[1]);
    CHECK(deaths[0].rank == leaver);
    CHECK_THAT(deaths[0].text, Catch::Contains("called shutdown() while"));
    CHECK_THAT(deaths[0].text, Catch::Contains("barrier number 0 without a name"));
  }
}

TEST_CASE("a rank that does not come to the shutdown is named when its time is up") {
  for (const int absent : {0, 1}) {
    const inproc::Group group(2);
    std::latch over(1);
    run_ranks(2, [&](int rank) {
      Config config = test_config();
      config.shutdown_timeout_s = 0.2;
      Runtime runtime(options_of(group, rank, config));
      if (rank == absent) {
        over.wait();
        check(death_in_barrier(runtime).rank == absent, "itself");
        return;
      }
      const Death death = death_of([&] { runtime.shutdown(); });
      over.count_down();
      check(death.rank == absent, "the absent rank");
      check_contains(death.text, "RONDE_SHUTDOWN_TIMEOUT_S");
    });
  }
}

TEST_CASE("an abort reaches every rank with its text") {
  for (const int speaker : {0, 2}) {
    const inproc::Group group(3);
    std::vector<Death> deaths(3);
    run_ranks(3, [&](int rank) {
      Runtime runtime(options_of(group, rank));
      if (rank == speaker) runtime.abort("the loss is NaN");
      deaths[static_cast<std::size_t>(rank)] = death_in_barrier(runtime);
      runtime.abort("a second one changes nothing");
    });
    for (const Death& death : deaths) {
      CHECK(death == deaths[0]);
      CHECK(death.rank == speaker);
      CHECK_THAT(death.text, Catch::Contains("aborted: the loss is NaN"));
    }
  }
}

TEST_CASE("a stall is reported on every rank, again and again, and harms nothing") {
  constexpr int kReports = 3;
  const inproc::Group group(3);
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
  const inproc::Group group(3);
  std::vector<Death> deaths(3);
  std::latch over(2);
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.stall_warn_s = 0.0;
    config.stall_abort_s = 0.1;
    Runtime runtime(options_of(group, rank, config));
    std::vector<float> values(2, 1.0F);
    if (rank == 2) over.wait();
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

TEST_CASE("a rank that dies after all agreed to stop, in an operation, is named") {
  FaultyGroup all(3);
  all.faults[1]->hold_starts();
  std::vector<std::unique_ptr<Runtime>> runtimes(3);
  run_ranks(3, [&](int rank) {
    runtimes[static_cast<std::size_t>(rank)] = std::make_unique<Runtime>(all.options(rank));
  });
  std::vector<std::vector<float>> values(3, std::vector<float>(4, 1.0F));
  std::vector<Death> deaths(3);
  std::latch survivors_know(2);
  run_ranks(4, [&](int rank) {
    if (rank == 3) {
      // The operation is the first decision, the agreement to stop the second.
      const auto decisions = [&] { return counter_of(*runtimes[0], "negotiation", "decisions"); };
      while (decisions() < 2) std::this_thread::yield();
      all.group.kill(1);
      survivors_know.wait();
      runtimes[1]->abort("the test is over");
      return;
    }
    const auto index = static_cast<std::size_t>(rank);
    const Work work = runtimes[index]->submit(sum_request(values[index], "x"));
    all.faults[index]->wait_begun(1);
    deaths[index] = death_of([&] { runtimes[index]->shutdown(); });
    if (rank != 1) survivors_know.count_down();
  });
  CHECK(deaths[0] == deaths[2]);
  CHECK(deaths[0].rank == 1);
  CHECK_THAT(deaths[0].text, Catch::Contains("rank 1 was lost: it was killed"));
}

TEST_CASE("a callback that throws harms neither the others nor a dying group") {
  const inproc::Group group(2);
  std::atomic<int> called{0};
  std::latch submitted(1);
  run_ranks(2, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    if (rank == 1) {
      submitted.wait();
      runtime.abort("over");
      death_in_barrier(runtime);
      return;
    }
    std::vector<float> values(2, 1.0F);
    const Work work = runtime.submit(sum_request(values, "x"));
    work.on_done([&] {
      ++called;
      throw Error("a callback must not do this");
    });
    work.on_done([&] {
      ++called;
      throw 42;
    });
    work.on_done([&] { ++called; });
    submitted.count_down();
    check(death_of([&] { work.wait(); }).rank == 1, "the death of the group is reported");
    runtime.shutdown();
  });
  CHECK(called == 3);
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

TEST_CASE("a held operation ends well once it is let go") {
  FaultyGroup all(2);
  all.faults[0]->hold_ends();
  all.faults[1]->hold_starts();
  run_ranks(2, [&](int rank) {
    Runtime runtime(all.options(rank));
    std::vector<float> values(2, 1.0F);
    const Work work = runtime.submit(sum_request(values, "x"));
    Faults& faults = *all.faults[static_cast<std::size_t>(rank)];
    faults.wait_begun(1);
    check(!work.wait_for(milliseconds(1)), "held");
    faults.release();
    work.wait();
    check(values[0] == 2.0F, "the sum");
    runtime.shutdown();
  });
}

TEST_CASE("a group that is dead before shutdown lets it pass in silence") {
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    if (rank == 1) runtime.abort("over");
    death_in_barrier(runtime);
    runtime.shutdown();
  });
}

TEST_CASE("many operations of many kinds in flight all fail when a rank dies") {
  FaultyGroup all(3);
  all.faults[1]->hold_starts();
  run_ranks(3, [&](int rank) {
    Runtime runtime(all.options(rank));
    std::vector<std::vector<float>> tensors(20, std::vector<float>(3, 1.0F));
    std::vector<Work> works;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      // Some of them in progress or planned, some never submitted by rank 1.
      if (rank == 1 && i >= 10) break;
      works.push_back(runtime.submit(sum_request(tensors[i], "t" + std::to_string(i))));
    }
    if (rank == 1) {
      all.faults[1]->wait_begun(1);
      all.group.kill(1);
      return;
    }
    for (const Work& work : works) {
      check(death_of([&] { work.wait(); }).rank == 1, "each names rank 1");
    }
  });
}
