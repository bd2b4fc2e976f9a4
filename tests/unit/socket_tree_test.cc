// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/socket_tree.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <future>
#include <latch>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "backends/socket/connection.h"
#include "backends/socket/host.h"
#include "ronde/cores.h"
#include "ronde/error.h"
#include "tests/support/ranks.h"

namespace {

using namespace std::chrono_literals;
using ronde::GroupError;
using ronde::Incoming;
using ronde::net::Clock;
using ronde::net::SocketTree;
using ronde::net::TreeOptions;
using namespace ronde::test;
using Kind = Incoming::Kind;

/// The exchange of ranks that are threads of this process.
class ThreadExchange {
 public:
  explicit ThreadExchange(int ranks) : together_(ranks), blobs_(static_cast<std::size_t>(ranks)) {}

  std::vector<std::string> operator()(int rank, std::string_view blob) {
    blobs_[static_cast<std::size_t>(rank)] = blob;
    together_.arrive_and_wait();
    std::vector<std::string> result = blobs_;
    together_.arrive_and_wait();
    return result;
  }

 private:
  std::barrier<> together_;
  std::vector<std::string> blobs_;
};

/// What a rank of `host` brings to the first exchange, if no tree does it.
std::string introduction(const std::string& host) {
  return ronde::net::pack({ronde::net::version_of_this_build(), host, "20000", "", "1"});
}

/// Of 'TwoInTurns' the even ranks share one, and the odd ones the other.
enum class Hosts { One, OneEach, TwoInTurns };

/// Runs `body` as every rank, each on a thread with its own tree.
void run_trees(int ranks, Hosts hosts, const std::function<void(int, SocketTree&)>& body) {
  ThreadExchange exchange(ranks);
  run_ranks(ranks, [&](int rank) {
    TreeOptions options = {
        .rank = rank, .size = ranks, .deadline = Clock::now() + 20s, .offer_loopback = true};
    if (hosts == Hosts::OneEach) options.host = "host " + std::to_string(rank);
    if (hosts == Hosts::TwoInTurns) options.host = "host " + std::to_string(rank % 2);
    SocketTree tree(options, [&](std::string_view blob) { return exchange(rank, blob); });
    body(rank, tree);
  });
}

/// As Transport::receive.
Incoming receive(SocketTree& tree, Clock::time_point deadline) {
  for (;;) {
    Incoming incoming = tree.poll();
    if (incoming.kind != Kind::Nothing || Clock::now() >= deadline) return incoming;
    if (tree.wait(deadline)) return tree.poll();
  }
}

/// The next thing that happens; throws if nothing does.
Incoming next(SocketTree& tree) {
  Incoming incoming = receive(tree, Clock::now() + 20s);
  if (incoming.kind == Kind::Nothing) throw std::runtime_error("nothing came within 20 s");
  return incoming;
}

std::string pattern(std::size_t length, int seed) {
  std::string bytes(length, '\0');
  std::uint32_t state = static_cast<std::uint32_t>(seed) * 2654435761U + 1U;
  for (char& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

}  // namespace

TEST_CASE("messages of every pair arrive whole and in order, locally and over TCP") {
  const Hosts hosts = GENERATE(Hosts::One, Hosts::OneEach);
  constexpr int kRanks = 5;
  constexpr int kMessages = 300;
  run_trees(kRanks, hosts, [&](int rank, SocketTree& tree) {
    // The first one is empty.
    const auto text = [](int from, int to, int i) {
      return pattern(static_cast<std::size_t>(i * 37 % 5000), from * 1000 + to * 100 + i);
    };
    const std::vector<int> peers = rank == 0 ? std::vector<int>{1, 2, 3, 4} : std::vector<int>{0};
    for (int i = 0; i < kMessages; ++i) {
      for (const int peer : peers) tree.send(peer, text(rank, peer, i));
    }
    // Nobody leaves before all have everything: each rank says so at the end, rank 0 after it has
    // heard of all.
    std::vector<int> seen(kRanks, 0);
    const std::size_t ends = rank == 0 ? peers.size() : 0;
    for (std::size_t i = 0; i < kMessages * peers.size() + ends; ++i) {
      const Incoming incoming = next(tree);
      check(incoming.kind == Kind::Message, "a message");
      const int count = seen[static_cast<std::size_t>(incoming.peer)]++;
      const bool last = count == kMessages;
      check(incoming.bytes == (last ? "end" : text(incoming.peer, rank, count)), "in order");
      if (rank != 0 && count == kMessages - 1) tree.send(0, "end");
    }
    for (int peer = 1; rank == 0 && peer < kRanks; ++peer) tree.send(peer, "end");
    if (rank != 0) check(next(tree).bytes == "end", "rank 0's end");
    tree.close(Clock::now() + 5s);
  });
}

TEST_CASE("large messages cross in both directions, and close hands over what is queued") {
  const Hosts hosts = GENERATE(Hosts::One, Hosts::OneEach);
  constexpr std::size_t kBytes = 24U << 20;
  run_trees(2, hosts, [&](int rank, SocketTree& tree) {
    tree.send(1 - rank, pattern(kBytes, rank));
    tree.send(1 - rank, "end");
    check(next(tree).bytes == pattern(kBytes, 1 - rank), "the large message is whole");
    check(next(tree).bytes == "end", "the small one comes after it");
    if (rank == 0) {
      tree.send(1, pattern(kBytes, 7));
      tree.send(1, "bye");
      return tree.close(Clock::now() + 20s);
    }
    check(next(tree).bytes == pattern(kBytes, 7), "everything arrives");
    check(next(tree).bytes == "bye", "to the end");
    check(next(tree).kind == Kind::PeerLost, "then rank 0 has left");
  });
}

TEST_CASE("the loss of a rank comes after its messages, once, and to rank 0 alone") {
  const Hosts hosts = GENERATE(Hosts::One, Hosts::OneEach);
  run_trees(3, hosts, [&](int rank, SocketTree& tree) {
    if (rank == 2) {
      for (int i = 0; i < 50; ++i) tree.send(0, std::to_string(i));
      return tree.close(Clock::now() + 5s);
    }
    if (rank == 1) {
      check(next(tree).bytes == "go", "nothing before rank 0's word");
      return tree.close(Clock::now() + 5s);
    }
    for (int i = 0; i < 50; ++i) {
      const Incoming message = next(tree);
      check(message.kind == Kind::Message && message.peer == 2, "messages of rank 2 first");
      check(message.bytes == std::to_string(i), "in order");
    }
    const Incoming loss = next(tree);
    check(loss.kind == Kind::PeerLost && loss.peer == 2, "then the loss of rank 2");
    check(loss.bytes == "its connection was closed", "with its reason");
    tree.send(2, "into the void");
    check(receive(tree, Clock::now() + 50ms).kind == Kind::Nothing, "and never again");
    tree.send(1, "go");
    check(next(tree).kind == Kind::PeerLost, "rank 1 leaves");
  });
}

TEST_CASE("every rank learns of the loss of rank 0, and a poll takes what is there") {
  const Hosts hosts = GENERATE(Hosts::One, Hosts::OneEach);
  run_trees(4, hosts, [&](int rank, SocketTree& tree) {
    if (rank == 0) {
      for (int peer = 1; peer < 4; ++peer) tree.send(peer, "last words");
      return tree.close(Clock::now() + 5s);
    }
    Incoming words;
    const auto give_up = Clock::now() + 20s;
    while (words.kind == Kind::Nothing && Clock::now() < give_up) words = tree.poll();
    check(words.bytes == "last words", "what it said before");
    const Incoming loss = next(tree);
    check(loss.kind == Kind::PeerLost && loss.peer == 0, "the loss of rank 0");
  });
}

TEST_CASE("wake ends the waiting of another thread, now or the next time") {
  run_trees(1, Hosts::One, [&](int, SocketTree& tree) {
    tree.wake();
    tree.wake();
    check(receive(tree, Clock::now() + 20s).kind == Kind::Nothing, "a wake before waiting");
    const auto start = Clock::now();
    check(receive(tree, start + 30ms).kind == Kind::Nothing, "wakes are not counted");
    check(Clock::now() >= start + 30ms, "so this one waited for its deadline");
    std::thread waker([&] { tree.wake(); });
    check(receive(tree, Clock::now() + 20s).kind == Kind::Nothing, "a wake while waiting");
    waker.join();
    check(Clock::now() < start + 10s, "it did not wait for the deadline");
  });
}

namespace {

/// How often the calling thread has given up the processor by itself.
long switches() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

/// The kernel's letter for what a thread of this process does: 'S' for one that sleeps.
char state_of(pid_t thread) {
  std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(stat, text);
  return text.at(text.rfind(')') + 2);
}

}  // namespace

TEST_CASE("a rank that waits sleeps in the kernel until something comes") {
  std::promise<pid_t> thread;
  run_trees(2, Hosts::One, [&](int rank, SocketTree& tree) {
    if (rank == 1) {
      thread.set_value(gettid());
      const long before = switches();
      check(next(tree).bytes == "go", "go");
      // One to sleep, and some of locks: far fewer than of a loop of short sleeps.
      check(switches() - before < 30, "it sleeps once: " + std::to_string(switches() - before));
      return;
    }
    const pid_t waits = thread.get_future().get();
    const auto give_up = Clock::now() + 20s;
    char state = state_of(waits);
    for (; state != 'S' && Clock::now() < give_up; state = state_of(waits)) {
      std::this_thread::yield();
    }
    check_equal(state, 'S', "the state of rank 1's thread");
    check(receive(tree, Clock::now() + 300ms).kind == Kind::Nothing, "nobody says anything");
    tree.send(1, "go");
    check(next(tree).kind == Kind::PeerLost, "rank 1 leaves");
  });
}

TEST_CASE("close gives up at its deadline if the peer does not read") {
  std::promise<void> closed;
  run_trees(2, Hosts::One, [&](int rank, SocketTree& tree) {
    if (rank == 1) return closed.get_future().wait();
    tree.send(1, pattern(64U << 20, 7));
    const auto start = Clock::now();
    tree.close(start + 100ms);
    closed.set_value();
    check(Clock::now() - start < 5s, "close is bounded");
  });
}

TEST_CASE("only neighbours in the tree can talk") {
  // Leaders 0 and 1; 2 and 4 below the one, 3 and 5 below the other.
  const std::vector<std::vector<int>> neighbours = {{1, 2, 4}, {0, 3, 5}, {0}, {1}, {0}, {1}};
  run_trees(6, Hosts::TwoInTurns, [&](int rank, SocketTree& tree) {
    const std::vector<int>& mine = neighbours[static_cast<std::size_t>(rank)];
    for (int peer = -1; peer <= 6; ++peer) {
      const auto say = [&] { tree.send(peer, "x"); };
      if (std::ranges::find(mine, peer) != mine.end()) {
        say();
      } else {
        check_contains(text_of<ronde::Error>(say), "not its neighbour");
      }
    }
    for (std::size_t heard = 0; heard < mine.size();) {
      const Incoming incoming = next(tree);
      if (incoming.kind == Kind::PeerLost) continue;  // it has heard of all already
      check(incoming.bytes == "x", "what neighbours said");
      ++heard;
    }
    tree.close(Clock::now() + 5s);
  });
}

TEST_CASE("a loss is told to the neighbours alone, and the rest of the tree stays") {
  run_trees(6, Hosts::TwoInTurns, [&](int rank, SocketTree& tree) {
    if (rank == 3) return tree.close(Clock::now() + 5s);
    if (rank == 1) {
      const Incoming loss = next(tree);
      check(loss.kind == Kind::PeerLost && loss.peer == 3, "the loss of its child");
      tree.send(0, "my child died");
      tree.send(5, "your sibling died");
    }
    if (rank == 0) {
      const Incoming word = next(tree);
      check(word.peer == 1 && word.bytes == "my child died", "the word of the leader");
      tree.send(2, "die");
      tree.send(4, "die");
      check(next(tree).kind == Kind::PeerLost, "those who leave now");
    }
    if (rank == 2 || rank == 4) check(next(tree).bytes == "die", "nothing before");
    if (rank == 5) check(next(tree).bytes == "your sibling died", "nothing before");
    tree.close(Clock::now() + 5s);
  });
}

TEST_CASE("many ranks meet") {
  constexpr int kRanks = 48;
  const Hosts hosts = GENERATE(Hosts::One, Hosts::OneEach);
  run_trees(kRanks, hosts, [&](int rank, SocketTree& tree) {
    check(tree.topology().size == kRanks && tree.topology().rank == rank, "topology");
    check(tree.topology().hosts() == (hosts == Hosts::One ? 1 : kRanks), "hosts");
    if (rank > 0) {
      tree.send(0, std::to_string(rank));
      check(next(tree).bytes == std::to_string(2 * rank), "its own answer");
      check(next(tree).kind == Kind::PeerLost, "rank 0 leaves first");
      return;
    }
    for (int i = 1; i < kRanks; ++i) {
      const Incoming incoming = next(tree);
      check(incoming.bytes == std::to_string(incoming.peer), "from the rank it says");
      tree.send(incoming.peer, std::to_string(2 * incoming.peer));
    }
  });
}

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
       {std::string(), std::string("host"), ronde::net::pack({"host"}),
        ronde::net::pack({ronde::net::version_of_this_build(), "host", "soon"})}) {
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
    exchange(0, ronde::net::pack({"it needs 20000 open files"}));
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
      : unix_name(ronde::net::unpack(blob).at(0)), port(ronde::net::unpack(blob).at(1)) {}

  const std::string unix_name, port;
};

/// A stranger connects to rank 0's local socket and sends `bytes`; true if rank 0 closes it.
bool stranger_is_refused(const Offer& offer, const std::string& bytes) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, offer.unix_name.data(), offer.unix_name.size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + offer.unix_name.size());
  ronde::net::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) return false;
  if (::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return false;
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
  CHECK(stranger_is_refused(offer, std::string(32, 'x')));
  root.join();
  CHECK_THAT(text, Catch::Contains("1 rank(s): 1") &&
                       Catch::Contains("1 connection(s) without the job's token were refused"));
}

TEST_CASE("a rank that cannot reach rank 0 lists what it tried") {
  // A port that nobody listens at, since the socket that holds it does not.
  const ronde::net::UniqueFd reserved(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
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
    exchange(0, ronde::net::pack({"none", port, token, token, "127.0.0.1"}));
  });
  const std::string text = text_of<GroupError>([&] {
    SocketTree({.rank = 1, .size = 2, .deadline = Clock::now() + 200ms},
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
  ronde::net::Connection connection{ronde::net::UniqueFd(fds[0])};
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
