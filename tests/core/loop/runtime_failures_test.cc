// SPDX-License-Identifier: Apache-2.0
// The death of a rank, or of its backend, which every survivor must learn of.
#include <catch2/catch.hpp>
#include <latch>

#include "tests/support/ranks/faulty_group.h"
#include "tests/support/ranks/results_of_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

enum class When { Idle, Negotiating, InProgress };
enum class How { Killed, Left };

/// The host of each rank.
using Hosts = std::vector<int>;

const Hosts kOneHost = {0, 0, 0};
const std::vector<Hosts> kPlacements = {kOneHost,     {0, 0, 1, 1}, {0, 1, 2},
                                        {0, 1, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 2, 2, 0}};
/// Their leaders are below one another, two below one.
const Hosts kSevenHosts = {0, 1, 1, 2, 3, 4, 5, 6, 6, 3};

/// Rank `victim` ends as `how` says: checks that all other ranks name it.
void check_deaths(const Hosts& hosts, int victim, When when, How how) {
  CAPTURE(hosts, victim, when, how);
  FaultyGroup all(hosts, hosts == kSevenHosts ? 2 : kMostLeadersBelow);
  Faults& faults = *all.faults[static_cast<std::size_t>(victim)];
  if (when == When::InProgress) faults.hold_starts();
  const auto size = static_cast<int>(hosts.size());
  std::latch ready(size);
  std::vector<Death> deaths = on_each_rank(size, [&](int rank) {
    Runtime runtime(all.options(rank));
    // Of those of a group at work the first is in progress, and the victim never submits the last.
    std::vector<std::vector<float>> tensors(3, std::vector<float>(4, 1.0F));
    std::vector<Work> works;
    if (rank == victim) tensors.resize(when == When::InProgress ? 2 : 0);
    for (std::size_t i = 0; when != When::Idle && i < tensors.size(); ++i) {
      works.push_back(runtime.submit(sum_request(tensors[i], "x" + std::to_string(i))));
    }
    if (when == When::InProgress && rank == victim) faults.wait_begun(1);
    ready.arrive_and_wait();
    if (rank == victim) {
      if (how == How::Killed) all.group.kill(rank);
      return Death();
    }
    const Death death =
        works.empty() ? death_in_barrier(runtime) : death_of([&] { works[0].wait(); });
    for (const Work& work : works) {
      check(death_of([&] { work.wait(); }) == death, "all in flight throw the same");
    }
    // Everything later fails alike; shutdown does nothing.
    check(death_in_sum(runtime, tensors[0]) == death, "later operations throw the same");
    runtime.shutdown();
    runtime.shutdown();
    return death;
  });
  deaths.erase(deaths.begin() + victim);
  const std::string expected = "rank " + std::to_string(victim) +
                               (how == How::Killed ? " was lost: it was killed" : " left without");
  for (const Death& death : deaths) {
    check_same_death({death}, victim, {expected, "The group is dead"});
  }
}

}  // namespace

TEST_CASE("a backend that fails when an operation begins, or in it, fails every rank alike") {
  struct Row {
    Hosts hosts;
    int culprit;
    bool begins;
  };
  const Row rows[] = {{kOneHost, 0, true},  {kOneHost, 2, true},     {{0, 1, 1, 0}, 1, true},
                      {kOneHost, 0, false}, {{0, 1, 1, 0}, 2, true}, {kOneHost, 1, false}};
  for (const Row& row : rows) {
    CAPTURE(row.hosts, row.culprit, row.begins);
    FaultyGroup all(row.hosts);
    Faults& faults = *all.faults[static_cast<std::size_t>(row.culprit)];
    if (row.begins) {
      faults.fail_start(1, "the cable is cut");
    } else {
      faults.hold_starts();
      faults.fail_poll(3, "the cable is cut");
    }
    const auto deaths = on_each_rank(static_cast<int>(row.hosts.size()), [&](int rank) {
      Runtime runtime(all.options(rank));
      std::vector<float> values(4, 1.0F);
      const Death death = death_in_sum(runtime, values);
      check(all.faults[static_cast<std::size_t>(rank)]->aborted(), "the backend was aborted");
      return death;
    });
    const std::string culprit = std::to_string(row.culprit);
    check_same_death(deaths, row.culprit, {"rank " + culprit + " failed: the cable is cut"});
  }
}

TEST_CASE("a rank whose loss a backend reports is blamed, and not the one that reports it") {
  for (const int witness : {0, 1}) {
    FaultyGroup all({0, 1, 2});
    Faults& faults = *all.faults[static_cast<std::size_t>(witness)];
    faults.hold_starts();
    faults.fail_poll(3, "the way to rank 2 is cut", 2);
    const auto deaths = on_each_rank(3, [&](int rank) {
      Runtime runtime(all.options(rank));
      std::vector<float> values(4, 1.0F);
      return death_in_sum(runtime, values);
    });
    check_same_death(deaths, 2, {"the way to rank 2 is cut. The group is dead"});
    CHECK(deaths[0].text.find("failed") == std::string::npos);
  }
}

TEST_CASE("any rank that ends is named on all others, on one host and on several") {
  const When when = GENERATE(When::Idle, When::Negotiating, When::InProgress);
  const How how = GENERATE(How::Killed, How::Left);
  std::vector<Hosts> placements = kPlacements;
  placements.push_back(kSevenHosts);
  for (const Hosts& hosts : placements) {
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      check_deaths(hosts, static_cast<int>(i), when, how);
    }
  }
}

TEST_CASE("a backend that breaks down for a rank of the same host that died is not blamed") {
  // Leader 1 hears of its backend's error first, and of the death of rank 2 behind it.
  FaultyGroup all({0, 1, 1});
  std::latch killed(1);
  all.faults[1]->hold_starts();
  all.faults[1]->fail_poll(3, "the cable is cut", [&] {
    all.group.kill(2);
    killed.count_down();
  });
  std::vector<Death> deaths = on_each_rank(3, [&](int rank) {
    std::vector<float> values(4, 1.0F);  // outlives the runtime of the rank that leaves it pending
    Runtime runtime(all.options(rank));
    if (rank != 2) return death_in_sum(runtime, values);
    const Work work = runtime.submit(sum_request(values, "x"));
    killed.wait();
    return Death();
  });
  deaths.pop_back();
  for (const Death& death : deaths) check_same_death({death}, 2, {"rank 2 was lost"});
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

TEST_CASE("what a rank submits after its abort is refused by the same error") {
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    std::vector<float> values(2, 1.0F);
    if (rank == 0) {
      // May be agreed in no round of the loop, whichever request it sees first.
      check(death_in_sum(runtime, values).rank == 1, "the abort is told");
      return;
    }
    runtime.abort("enough");
    const Death death = death_of([&] { runtime.submit(sum_request(values, "x")); });
    check(death.rank == 1, "this rank has failed the group");
    check(death.text.find("rank 1 aborted: enough. The group is dead") == 0, death.text);
    check(runtime.failure() != nullptr, "the group has failed");
  });
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
