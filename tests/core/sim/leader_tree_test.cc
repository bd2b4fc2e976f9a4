// SPDX-License-Identifier: Apache-2.0
// Leaders below other leaders, in virtual time: what is agreed, who is told what, who is blamed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ronde/topology.h"
#include "tests/core/sim/steps.h"
#include "tests/support/ranks/random_program.h"

namespace ronde {
namespace {

using namespace std::chrono_literals;
using test::Dice;
using test::Steps;

/// Hosts of one to three ranks each, whose leaders are at least two above one another.
struct Tree {
  explicit Tree(Dice& dice) : most_leaders_below(1 + static_cast<int>(dice.below(3))) {
    const std::size_t hosts = most_leaders_below == 1 ? 4 : 8 + dice.below(8);
    for (std::size_t host = 0; host < hosts; ++host) {
      host_of.insert(host_of.end(), 1 + dice.below(3), static_cast<int>(host));
    }
    topology = make_topology(0, host_of, most_leaders_below);
  }
  int size() const { return topology.size; }
  int random_rank(Dice& dice) const {
    return static_cast<int>(dice.below(static_cast<std::size_t>(size())));
  }

  int most_leaders_below;
  std::vector<int> host_of;
  Topology topology;
};

/// Ranks compute for up to 40 us, and one in 500 for 150 ms: longer than a leader waits for it.
void pause_at_random(Steps& steps, Dice& dice) {
  steps.pause = [&dice] {
    const bool is_late = dice.one_in(500);
    return is_late ? Simulation::Time(150ms)
                   : static_cast<int>(dice.below(40)) * Simulation::Time(1us);
  };
}

/// Counters of all ranks that do not depend on time.
std::vector<std::uint64_t> agreed_on(const Steps& steps, int size) {
  std::vector<std::uint64_t> counts;
  for (int rank = 0; rank < size; ++rank) {
    for (const auto& [part, name] :
         std::vector<std::pair<std::string, std::string>>{{"coordinator", "ready_messages"},
                                                          {"response_cache", "hits"},
                                                          {"response_cache", "misses"},
                                                          {"execution", "buckets"},
                                                          {"execution", "tensors"},
                                                          {"execution", "bytes"}}) {
      counts.push_back(steps.counter(rank, part, name));
    }
  }
  return counts;
}

TEST_CASE("leaders below others agree on what they agree on below rank 0") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const Tree tree(dice);
    const auto outcome = [&](int most_leaders_below) {
      Steps steps(tree.host_of, 8, test::config_of_steps(), most_leaders_below);
      pause_at_random(steps, dice);
      REQUIRE(steps.simulation->run());
      for (int rank = 0; rank < tree.size(); ++rank) {
        CHECK(steps.step_of(rank) == 8);
        CHECK(steps.simulation->failure(rank) == nullptr);
      }
      return agreed_on(steps, tree.size());
    };
    CHECK(outcome(tree.most_leaders_below) == outcome(kMostLeadersBelow));
  }
}

/// The messages of the control plane between hosts, by the pair of ranks.
std::map<std::pair<int, int>, int> between_hosts(const Tree& tree, int count) {
  Steps steps(tree.host_of, count, test::config_of_steps(), tree.most_leaders_below);
  CHECK(steps.simulation->run());
  std::map<std::pair<int, int>, int> messages;
  for (const SimulatedMessage& message : steps.messages) {
    const auto host = [&](int rank) { return tree.host_of[static_cast<std::size_t>(rank)]; };
    if (message.is_control && host(message.from) != host(message.to)) {
      ++messages[{message.from, message.to}];
    }
  }
  return messages;
}

TEST_CASE("a cached step takes one message up and one down for each leader but rank 0") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const Tree tree(dice);
    const auto few = between_hosts(tree, 5);
    const auto many = between_hosts(tree, 15);
    std::map<int, std::set<int>> peers;
    for (const auto& [link, messages] : many) {
      CHECK(messages - few.at(link) == 10);
      CHECK(many.contains({link.second, link.first}));
      peers[link.first].insert(link.second);
    }
    CHECK(std::ssize(many) == 2 * (tree.topology.hosts() - 1));
    const auto most = static_cast<std::size_t>(tree.most_leaders_below);
    for (const auto& [rank, its_peers] : peers) CHECK(its_peers.size() <= most + (rank > 0));
    CHECK(tree.topology.depth_of(tree.topology.leaders.back()) >= 2);
  }
}

/// Every survivor names the victim, and at its beginning the text does, too.
void check_blamed(Steps& steps, const Tree& tree, int victim, bool may_have_ended) {
  for (int rank = 0; rank < tree.size(); ++rank) {
    if (rank == victim) continue;
    INFO("rank " << rank << ", victim " << victim);
    const test::End end = test::end_of(steps.simulation->failure(rank));
    if (may_have_ended && end.text.empty()) continue;
    CHECK(end.failed_rank == victim);
    CHECK_THAT(end.text, Catch::StartsWith("rank " + std::to_string(victim) + " was lost"));
  }
}

TEST_CASE("whichever rank dies, and whenever, all others name it and end") {
  constexpr int kSteps = 6;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const Tree tree(dice);
    Steps whole(tree.host_of, kSteps, test::config_of_steps(), tree.most_leaders_below);
    CHECK(whole.simulation->run());
    const auto end = static_cast<std::size_t>(whole.simulation->now().count());
    whole.simulation.reset();

    Steps steps(tree.host_of, kSteps, test::config_of_steps(), tree.most_leaders_below);
    const int victim = tree.random_rank(dice);
    const Simulation::Time moment(dice.below(end));
    bool had_ended = false;  // the steps of some rank, so that others may end in order
    steps.simulation->at(moment, [&] {
      for (int rank = 0; rank < tree.size(); ++rank) {
        had_ended = had_ended || steps.step_of(rank) == kSteps;
      }
      steps.kill(victim);
    });
    REQUIRE(steps.simulation->run());
    CHECK(steps.simulation->now() < moment + 1s);
    check_blamed(steps, tree, victim, had_ended);
  }
}

Config impatient_config() {
  Config config = test::config_of_steps();
  config.stall_warn_s = 5;
  config.stall_abort_s = 20;
  return config;
}

TEST_CASE("whichever rank is stopped while all start, and whenever, the others name it") {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const Tree tree(dice);
    Steps whole(tree.host_of, 0, test::config_of_steps(), tree.most_leaders_below);
    CHECK(whole.simulation->run());
    const auto started = static_cast<std::size_t>(whole.simulation->started().count());
    whole.simulation.reset();

    Steps steps(tree.host_of, 1, impatient_config(), tree.most_leaders_below);
    const int victim = tree.random_rank(dice);
    steps.simulation->at(Simulation::Time(dice.below(started)),
                         [&] { steps.simulation->stop(victim); });
    CHECK_FALSE(steps.simulation->run());
    for (int rank = 0; rank < tree.size(); ++rank) {
      if (rank == victim) continue;
      const test::End end = test::end_of(steps.simulation->failure(rank));
      INFO("rank " << rank << ", victim " << victim << ": " << end.text);
      CHECK(end.failed_rank == victim);
    }
  }
}

TEST_CASE("whichever rank is stopped, all others name it") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const Tree tree(dice);
    Steps steps(tree.host_of, 4, impatient_config(), tree.most_leaders_below);
    const int victim = tree.random_rank(dice);
    steps.deviate(victim, 2, [&] { steps.simulation->stop(victim); });
    CHECK_FALSE(steps.simulation->run());
    for (int rank = 0; rank < tree.size(); ++rank) {
      if (rank == victim) continue;
      INFO("rank " << rank << ", victim " << victim << ": " << steps.end(rank).text);
      CHECK(steps.end(rank).failed_rank == victim);
    }
  }
}

TEST_CASE("a stall below leaders is reported to all ranks, and ends when the rank goes on") {
  Dice dice(3);
  const Tree tree(dice);
  const int victim = tree.size() - 1;
  REQUIRE(tree.topology.depth_of(victim) >= 2);
  Steps steps(tree.host_of, 4, impatient_config(), tree.most_leaders_below);
  steps.deviate(victim, 2, [&] {
    steps.simulation->at(steps.simulation->now() + 12s, [&] { steps.submit(victim); });
  });
  CHECK(steps.simulation->run());
  CHECK(std::ssize(steps.told_of_stall) == tree.size());
  for (const StalledOperation& stalled : steps.stalls) {
    CHECK(ranks_in(stalled.missing_ranks) == std::vector{victim});
  }
  for (int rank = 0; rank < tree.size(); ++rank) CHECK(steps.step_of(rank) == 4);
}

TEST_CASE("a rank that shuts down early is named by all, above and below it") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const Tree tree(dice);
    Steps steps(tree.host_of, 4, test::config_of_steps(), tree.most_leaders_below);
    const int victim = tree.random_rank(dice);
    steps.deviate(victim, 2, [&] { steps.simulation->shut_down(victim); });
    CHECK(steps.simulation->run());
    for (int rank = 0; rank < tree.size(); ++rank) {
      if (rank == victim) continue;
      CHECK(steps.end(rank).failed_rank == victim);
      CHECK_THAT(steps.end(rank).text, Catch::Contains("called shutdown() while"));
    }
  }
}

}  // namespace
}  // namespace ronde
