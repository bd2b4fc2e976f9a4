// SPDX-License-Identifier: Apache-2.0
// Runtimes whose control plane goes over sockets by way of leaders below other leaders.
#include <barrier>
#include <catch2/catch.hpp>
#include <memory>

#include "backends/socket/handshake_client.h"
#include "tests/socket/trees.h"
#include "tests/support/harness/sanitizers.h"
#include "tests/support/ranks/random_rank.h"
#include "tests/support/ranks/results_of_ranks.h"

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

/// Rank `hanging` takes part in the exchanges, connects to its parent if `is_connected`, and does
/// nothing more until the others are `done`.
void hang(int hanging, bool is_connected, ThreadExchange& exchange, std::latch& done) {
  const auto take_part = [&, calls = 0](std::string_view blob) mutable {
    const std::vector<std::string> blobs = exchange(hanging, blob);
    if (++calls == 1) return blobs;
    const int parent = make_topology(hanging, kHosts, 2).parent();
    const net::Endpoint above =
        net::unpack_endpoint(blobs[static_cast<std::size_t>(parent)], parent);
    std::vector<net::Address> addresses;
    for (const std::string& text : above.addresses) {
      addresses.push_back(net::tcp_address(text, above.port));
    }
    const net::Credentials credentials = {above.name, kRanks, net::JobKey("", above.token)};
    UniqueFd socket;
    if (is_connected) {
      socket =
          net::HandshakeClient(hanging, parent, credentials, addresses).run(Clock::now() + 20s);
    }
    done.wait();
    throw std::runtime_error("it hung");
  };
  static_cast<void>(
      text_of<std::runtime_error>([&] { SocketTree(options_of(hanging), take_part); }));
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

TEST_CASE("all others name a leader that hangs before or after it has connected to its parent") {
  constexpr int hanging = 1;  // ranks 2, 4, 5 and 9 are below it
  const bool is_connected = GENERATE(false, true);
  const inproc::Group group(kHosts);
  ThreadExchange exchange(kRanks);
  std::latch done(kRanks - 1);
  Clock::time_point deadline;  // one for all, so that they give up in turn
  std::barrier begun(kRanks - 1, [&]() noexcept { deadline = Clock::now() + 2s; });
  const std::vector<Death> deaths = on_each_rank(kRanks, [&](int rank) {
    if (rank == hanging) {
      hang(hanging, is_connected, exchange, done);
      return Death();
    }
    RuntimeOptions options = ronde::test::options_of(group, rank);
    options.make_transport = [&, rank] {
      TreeOptions of_tree = options_of(rank);
      begun.arrive_and_wait();
      of_tree.deadline = deadline;
      return std::make_unique<SocketTree>(of_tree, exchange.of(rank));
    };
    const std::shared_ptr<void> leave(nullptr, [&done](void*) { done.count_down(); });
    return death_of([&] { const Runtime runtime(std::move(options)); });
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == hanging) continue;
    const Death& death = deaths[static_cast<std::size_t>(rank)];
    INFO("rank " << rank << ": " << death.text);
    CHECK(death.rank == hanging);
    CHECK_THAT(death.text, Catch::Contains("rank " + std::to_string(hanging)));
  }
}
