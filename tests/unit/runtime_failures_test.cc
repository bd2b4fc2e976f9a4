// SPDX-License-Identifier: Apache-2.0
// The death of a rank, or of its backend, which every survivor must learn of.
#include <atomic>
#include <catch2/catch.hpp>
#include <latch>

#include "ronde/error.h"
#include "tests/unit/faulty_group.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;

enum class When { Idle, Negotiating, InProgress };
enum class How { Killed, Left };

/// The host of each rank.
using Hosts = std::vector<int>;

const Hosts kOneHost = {0, 0, 0};
const std::vector<Hosts> kPlacements = {kOneHost,     {0, 0, 1, 1}, {0, 1, 2},
                                        {0, 1, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 2, 2, 0}};

/// Rank `victim` ends in the way said; what the others are told.
std::vector<Death> deaths_after(const Hosts& hosts, int victim, When when, How how) {
  const auto size = static_cast<int>(hosts.size());
  FaultyGroup all(hosts);
  Faults& faults = *all.faults[static_cast<std::size_t>(victim)];
  if (when == When::InProgress) faults.hold_starts();
  std::latch ready(size);
  std::vector<Death> deaths(hosts.size());
  run_ranks(size, [&](int rank) {
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

void check_deaths(const Hosts& hosts, int victim, When when, How how) {
  CAPTURE(hosts, victim, when, how);
  const std::string expected = "rank " + std::to_string(victim) +
                               (how == How::Killed ? " was lost: it was killed" : " left without");
  for (const Death& death : deaths_after(hosts, victim, when, how)) {
    CHECK(death.rank == victim);
    CHECK_THAT(death.text, Catch::Contains(expected));
    CHECK_THAT(death.text, Catch::Contains("The group is dead"));
  }
}

/// A backend of `culprit` goes wrong as `arm` says: every rank gets the same error.
void check_backend_failure(const Hosts& hosts, int culprit,
                           const std::function<void(Faults&)>& arm) {
  CAPTURE(hosts, culprit);
  FaultyGroup all(hosts);
  arm(*all.faults[static_cast<std::size_t>(culprit)]);
  std::vector<Death> deaths(hosts.size());
  run_ranks(static_cast<int>(hosts.size()), [&](int rank) {
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
  const auto fail_start = [](Faults& faults) { faults.fail_start(1, "the cable is cut"); };
  for (const int culprit : {0, 2}) check_backend_failure(kOneHost, culprit, fail_start);
  for (const int culprit : {1, 2}) check_backend_failure({0, 1, 1, 0}, culprit, fail_start);
}

TEST_CASE("any rank that ends is named on all others, on one host and on several") {
  const When when = GENERATE(When::Idle, When::Negotiating, When::InProgress);
  const How how = GENERATE(How::Killed, How::Left);
  for (const Hosts& hosts : kPlacements) {
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      check_deaths(hosts, static_cast<int>(i), when, how);
    }
  }
}

TEST_CASE("a backend that breaks down for a rank of the same host that died is not blamed") {
  // Leader 1 hears of its backend's error first, and of the death of rank 2 behind it.
  FaultyGroup all({0, 1, 1});
  all.faults[1]->hold_starts();
  all.faults[1]->fail_poll(3, "the cable is cut");
  std::vector<Death> deaths(3);
  run_ranks(3, [&](int rank) {
    std::vector<float> values(4, 1.0F);  // outlives the runtime of the rank that leaves it pending
    Runtime runtime(all.options(rank));
    if (rank == 2) {
      const Work work = runtime.submit(sum_request(values, "x"));
      all.faults[1]->wait_begun(1);
      all.group.kill(2);
      return;
    }
    deaths[static_cast<std::size_t>(rank)] = death_in_sum(runtime, values);
  });
  for (const std::size_t rank : {0U, 1U}) {
    CHECK(deaths[rank].rank == 2);
    CHECK_THAT(deaths[rank].text, Catch::Contains("rank 2 was lost"));
  }
}

TEST_CASE("a backend that fails in an operation fails every rank alike") {
  for (const int culprit : {0, 1}) {
    check_backend_failure(kOneHost, culprit, [](Faults& faults) {
      faults.hold_starts();
      faults.fail_poll(3, "the cable is cut");
    });
  }
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

TEST_CASE("an abort reaches every rank with its text") {
  for (const int speaker : {0, 1, 2, 3}) {
    const inproc::Group group(Hosts{0, 0, 1, 1});
    std::vector<Death> deaths(4);
    run_ranks(4, [&](int rank) {
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
