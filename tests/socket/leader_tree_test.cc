// SPDX-License-Identifier: Apache-2.0
// Runtimes whose control plane goes over sockets by way of leaders below other leaders.
#include <catch2/catch.hpp>

#include "tests/socket/trees.h"
#include "tests/support/harness/sanitizers.h"
#include "tests/support/ranks/random_rank.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// Seven hosts, two leaders below one: rank 0, then 1 and 3, then 4 to 7.
const std::vector<int> kHosts = {0, 1, 1, 2, 3, 4, 5, 6, 6, 3};
constexpr int kRanks = 10;

TreeOptions options_of(int rank) {
  TreeOptions options = options_on(Hosts::One, rank, kRanks);
  options.host = "host " + std::to_string(kHosts[static_cast<std::size_t>(rank)]);
  options.most_leaders_below = 2;
  return options;
}

}  // namespace

TEST_CASE(
    "leaders below others accept connections of other hosts, and messages go from rank to rank") {
  ThreadExchange exchange(kRanks);
  std::latch done(kRanks);
  run_ranks(kRanks, [&](int rank) {
    auto tree = std::make_unique<SocketTree>(options_of(rank), exchange.of(rank));
    const Topology topology = meet_and_close(std::move(tree), done);
    const int host = kHosts[static_cast<std::size_t>(rank)];
    const bool leads = topology.local_rank == 0;
    const std::vector<int> leaders = {0, 1, 3, 4, 5, 6, 7};
    const int above = leaders[static_cast<std::size_t>(leads ? (host - 1) / 2 : host)];
    check_equal(topology.parent(), rank == 0 ? -1 : above, "the rank above");
  });
}

TEST_CASE("random programs run over a tree of leaders, connected by sockets") {
  for (std::uint64_t seed = 1; seed <= plain_or_sanitized(6U, 2U); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const Config config = random_settings(dice, test_config());
    const inproc::Group group(kHosts);
    ThreadExchange exchange(kRanks);
    run_ranks(kRanks, [&](int rank) {
      RuntimeOptions options = ronde::test::options_of(group, rank, config);
      options.make_transport = [&, rank] {
        return std::make_unique<SocketTree>(options_of(rank), exchange.of(rank));
      };
      Runtime runtime(options);
      const RandomRank::Engine engine = {.runtime = [&]() -> Runtime& { return runtime; },
                                         .join_averages_over_all = config.join_average == "all"};
      RandomPrograms programs(engine, rank, kRanks, seed);
      programs.play(plain_or_sanitized(30, 10));
      runtime.shutdown();
    });
  }
}
