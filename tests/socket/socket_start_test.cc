// SPDX-License-Identifier: Apache-2.0
// How the ranks of a socket tree find each other, or do not.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <deque>
#include <latch>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "backends/socket/connection.h"
#include "backends/socket/handshake.h"
#include "backends/socket/host.h"
#include "core/src/base/fields.h"
#include "ronde/cores.h"
#include "ronde/error.h"
#include "tests/socket/trees.h"
#include "tests/support/ranks/ranks.h"

using namespace ronde::test;
using ronde::GroupError;
using ronde::Incoming;

TEST_CASE("all ranks give their start up when the first of them would") {
  ThreadExchange exchange(3);
  const auto begin = Clock::now();
  run_ranks(3, [&](int rank) {
    const SocketTree tree({.rank = rank, .size = 3, .deadline = begin + (1 + rank) * 1h},
                          [&](std::string_view blob) { return exchange(rank, blob); });
    check(tree.start_deadline() > begin + 59min, "not before");
    check(tree.start_deadline() < begin + 61min, "nor long after");
  });
}

TEST_CASE("ranks of different versions of Ronde are named on all of them, before they connect") {
  ThreadExchange exchange(3);
  run_ranks(3, [&](int rank) {
    TreeOptions options = {.rank = rank, .size = 3};
    if (rank == 1) options.version = "9.9 for Plan9 mips";
    const std::string text = text_of<ronde::UsageError>([&] {
      const SocketTree tree(options, [&](std::string_view blob) { return exchange(rank, blob); });
    });
    check_contains(text, "the version of Ronde: ranks 0,2: " + ronde::net::version_of_this_build());
    check_contains(text, "rank 1: 9.9 for Plan9 mips");
  });
}

TEST_CASE("what a rank sends while the trees meet and cannot be read is its error") {
  for (const std::string& bytes :
       {std::string(), std::string("host"), ronde::pack_fields({"host"}),
        ronde::pack_fields({ronde::net::version_of_this_build(), "host", "soon"})}) {
    ThreadExchange exchange(2);
    std::jthread other([&] { exchange(1, bytes); });
    const Death death = death_of([&] {
      SocketTree({.rank = 0, .size = 2}, [&](std::string_view blob) { return exchange(0, blob); });
    });
    CHECK(death.rank == 1);
    CHECK_THAT(death.text, Catch::StartsWith("rank 1 sent a bootstrap message that cannot"));
  }
}

TEST_CASE("a rank that cannot let the others connect says why to all of them") {
  ThreadExchange exchange(2);
  std::jthread root([&] {
    exchange(0, introduction("host"));
    exchange(0, ronde::pack_fields({"it needs 20000 open files"}));
  });
  const Death death = death_of([&] {
    SocketTree({.rank = 1, .size = 2}, [&](std::string_view blob) { return exchange(1, blob); });
  });
  CHECK(death == Death{0, "rank 0 cannot let the others connect to it: it needs 20000 open files"});
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
    SocketTree tree({.rank = rank,
                     .size = 4,
                     .deadline = Clock::now() + 1s,
                     .host = host,
                     .offer_loopback = true},
                    [&](std::string_view blob) { return exchange(rank, blob); });
    const Incoming loss = next(tree);
    done.arrive_and_wait();
    check(loss.kind == Kind::PeerLost && loss.peer == rank + 2, "the loss of its child");
    check_contains(loss.bytes, "rank " + std::to_string(rank) + " waited");
    check_contains(loss.bytes, "1 rank(s): " + std::to_string(rank + 2));
  });
}

namespace {

/// What rank 0 offers, as this test's rank 1 sees it.
struct Offer {
  explicit Offer(const std::string& blob)
      : unix_name(ronde::unpack_fields(blob).at(0)), port(ronde::unpack_fields(blob).at(1)) {}

  const std::string unix_name, port;
};

/// A stranger connects to rank 0's local socket and sends `bytes`; true if rank 0 closes it.
bool stranger_is_refused(const Offer& offer, const std::string& bytes) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, offer.unix_name.data(), offer.unix_name.size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + offer.unix_name.size());
  ronde::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) return false;
  if (::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return false;
  std::array<char, sizeof(ronde::net::Greeting)> greeting = {};
  ::recv(socket.get(), greeting.data(), greeting.size(), MSG_WAITALL);
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, 0) <= 0;
}

}  // namespace

TEST_CASE("rank 0 opens no TCP port on one host, and a stranger does not become a rank") {
  ThreadExchange exchange(2);
  std::string text;
  std::jthread root([&] {
    SocketTree tree({.rank = 0, .size = 2, .deadline = Clock::now() + 1s},
                    [&](std::string_view blob) { return exchange(0, blob); });
    text = next(tree).bytes;
  });
  exchange(1, introduction(ronde::net::host_identity()));
  const Offer offer(exchange(1, "").at(0));
  CHECK(offer.port == "0");
  CHECK(stranger_is_refused(offer, std::string(sizeof(ronde::net::Hello), 'x')));
  root.join();
  CHECK_THAT(text, Catch::Contains("1 rank(s): 1") &&
                       Catch::Contains("1 connection(s) were refused, the last one because a "
                                       "stranger spoke"));
}

TEST_CASE("a rank that cannot reach rank 0 lists what it tried") {
  // A port that nobody listens at, since the socket that holds it does not.
  const ronde::UniqueFd reserved(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(reserved.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  socklen_t length = sizeof address;
  REQUIRE(::getsockname(reserved.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  const std::string port = std::to_string(ntohs(address.sin_port));

  ThreadExchange exchange(2);
  std::jthread root([&] {
    const std::string token(16, 't');
    exchange(0, introduction("another host"));
    exchange(0, ronde::pack_fields({"none", port, token, token, "127.0.0.1"}));
  });
  const std::string text = text_of<GroupError>([&] {
    SocketTree({.rank = 1, .size = 2, .deadline = Clock::now() + 1s},
               [&](std::string_view blob) { return exchange(1, blob); });
  });
  root.join();
  CHECK_THAT(text, Catch::Contains("rank 1 could not connect to rank 0") &&
                       Catch::Contains("127.0.0.1 port " + port) &&
                       Catch::Contains("Connection refused"));
}

TEST_CASE("the end of a connection says why writing to it had failed") {
  std::array<int, 2> fds = {};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0);
  ronde::net::Connection connection{ronde::UniqueFd(fds[0])};
  ::close(fds[1]);
  connection.queue("to nobody");
  connection.flush();
  std::deque<std::string> messages;
  CHECK(connection.read(messages) == ronde::net::Connection::ReadState::Ended);
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
      TreeOptions options = {
          .rank = rank, .size = 4, .deadline = Clock::now() + 20s, .offer_loopback = true};
      if (hosts == Hosts::TwoInTurns) options.host = "host " + std::to_string(rank % 2);
      const SocketTree tree(options, [&](std::string_view blob) { return exchange(rank, blob); });
      counts[static_cast<std::size_t>(rank)] = tree.topology().local_cores;
    });
    return counts;
  };
  const int both = std::min(static_cast<int>(cores.size()), ronde::usable_cores().quota);
  const auto in_turns = [&](int rank) { return rank % 2 == 0 ? cores.front() : cores.back(); };
  CHECK(count(Hosts::One, [&](int) { return cores.front(); }) == std::vector<int>(4, 1));
  CHECK(count(Hosts::One, in_turns) == std::vector<int>(4, both));
  CHECK(count(Hosts::TwoInTurns, in_turns) == std::vector<int>(4, 1));
}
