// SPDX-License-Identifier: Apache-2.0
// How the ranks of a socket tree find each other, or do not.
#include <catch2/catch.hpp>
#include <deque>

#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/socket/connection.h"
#include "backends/socket/sockets.h"
#include "core/src/base/fields.h"
#include "ronde/cores.h"
#include "ronde/error.h"
#include "tests/socket/trees.h"
#include "tests/support/ranks/ranks.h"

using namespace ronde;
using namespace ronde::test;

TEST_CASE("all ranks give their start up when the first of them would") {
  ThreadExchange exchange(3);
  const auto begin = Clock::now();
  run_ranks(3, [&](int rank) {
    const SocketTree tree({.rank = rank, .size = 3, .deadline = begin + (1 + rank) * 1h},
                          exchange.of(rank));
    check(tree.start_deadline() > begin + 59min, "not before");
    check(tree.start_deadline() < begin + 61min, "nor long after");
  });
}

TEST_CASE("ranks of different versions of Ronde are named on all of them, before they connect") {
  ThreadExchange exchange(3);
  run_ranks(3, [&](int rank) {
    TreeOptions options = {.rank = rank, .size = 3};
    if (rank == 1) options.version = "9.9 for Plan9 mips";
    const auto start = [&] { SocketTree(options, exchange.of(rank)); };
    const std::string text = text_of<UsageError>(start);
    check_contains(text, "the version of Ronde: ranks 0,2: " + net::version_of_this_build());
    check_contains(text, "rank 1: 9.9 for Plan9 mips");
  });
}

TEST_CASE(
    "a rank that sends what cannot be read, or that it cannot listen, is named on the others") {
  const std::string unreadable = "rank 0 sent a bootstrap message that cannot";
  const std::string version = net::version_of_this_build();
  const std::vector<std::pair<std::vector<std::string>, std::string>> rows = {
      {{""}, unreadable},
      {{"host"}, unreadable},
      {{pack_fields({"host"})}, unreadable},
      {{pack_fields({version, "host", "soon"})}, unreadable},
      {{introduction("host"), pack_fields({"it needs 20000 open files"})},
       "rank 0 cannot let the others connect to it: it needs 20000 open files"}};
  for (const auto& [blobs, text] : rows) {
    ThreadExchange exchange(2);
    std::jthread root([&, &sent = blobs] {
      for (const std::string& blob : sent) exchange(0, blob);
    });
    const Death death = death_of([&] { SocketTree({.rank = 1, .size = 2}, exchange.of(1)); });
    CHECK(death.rank == 0);
    CHECK_THAT(death.text, Catch::StartsWith(text));
  }
}

TEST_CASE("children that never come are lost, with a text that names all of them") {
  ThreadExchange exchange(4);
  std::latch together(4);
  std::latch done(2);
  // Rank 3 never comes to rank 1, nor rank 2 to rank 0: they only take part in the exchange. All
  // begin together, so that the limit passes for these two alone.
  run_ranks(4, [&](int rank) {
    together.arrive_and_wait();
    const std::string host = "host " + std::to_string(rank % 2);
    if (rank > 1) {
      exchange(rank, introduction(host));
      exchange(rank, "");
      return;
    }
    TreeOptions options = options_on(Hosts::TwoInTurns, rank, 4);
    options.deadline = Clock::now() + 5s;
    SocketTree tree(options, exchange.of(rank));
    const Incoming loss = next(tree);
    done.arrive_and_wait();
    check(loss.kind == Kind::PeerLost && loss.peer == rank + 2, "the loss of its child");
    check_contains(loss.bytes, "rank " + std::to_string(rank) + " waited");
    check_contains(loss.bytes, "1 rank(s): " + std::to_string(rank + 2));
  });
}

TEST_CASE("rank 0 opens no TCP port on one host") {
  ThreadExchange exchange(2);
  std::jthread root([&] {
    const SocketTree tree({.rank = 0, .size = 2, .deadline = Clock::now() + 200ms}, exchange.of(0));
  });
  exchange(1, introduction(net::host_identity()));
  CHECK(unpack_fields_from(0, exchange(1, "").at(0), 2).at(1) == "0");
}

TEST_CASE("the end of a connection says why writing to it had failed") {
  std::array<int, 2> fds = {};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0);
  net::Connection connection{UniqueFd(fds[0])};
  ::close(fds[1]);
  connection.queue("to nobody");
  connection.flush();
  std::deque<std::string> messages;
  CHECK(connection.read(messages) == net::Connection::ReadState::Ended);
  CHECK(connection.end_text() ==
        "its connection was closed; writing to it had failed: Broken pipe");
}

TEST_CASE("the ranks of a host count the cores of them all, however they are bound") {
  cpu_set_t mine;
  REQUIRE(::sched_getaffinity(0, sizeof mine, &mine) == 0);
  std::vector<std::size_t> cores;
  for (std::size_t core = 0; core < CPU_SETSIZE && cores.size() < 2; ++core) {
    if (CPU_ISSET(core, &mine)) cores.push_back(core);
  }
  const auto count = [&](Hosts hosts, auto core_of) {
    ThreadExchange exchange(4);
    std::vector<int> counts(4);
    run_ranks(4, [&](int rank) {
      cpu_set_t own;
      CPU_ZERO(&own);
      CPU_SET(core_of(rank), &own);
      check(::sched_setaffinity(0, sizeof own, &own) == 0, "bound");
      const SocketTree tree(options_on(hosts, rank, 4), exchange.of(rank));
      counts[static_cast<std::size_t>(rank)] = tree.topology().local_cores;
    });
    return counts;
  };
  const int both = std::min(static_cast<int>(cores.size()), usable_cores().quota);
  const auto in_turns = [&](int rank) { return rank % 2 == 0 ? cores.front() : cores.back(); };
  CHECK(count(Hosts::One, [&](int) { return cores.front(); }) == std::vector<int>(4, 1));
  CHECK(count(Hosts::One, in_turns) == std::vector<int>(4, both));
  CHECK(count(Hosts::TwoInTurns, in_turns) == std::vector<int>(4, 1));
}
