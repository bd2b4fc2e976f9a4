// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/socket_tree.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <sys/eventfd.h>
#include <sys/resource.h>

#include "core/src/base/system.h"
#include "ronde/error.h"
#include "tests/socket/trees.h"
#include "tests/support/ranks/ranks.h"

namespace {

using namespace ronde::test;
using ronde::GroupError;
using ronde::Incoming;

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
    tree.close(true, Clock::now() + 5s);
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
      return tree.close(true, Clock::now() + 20s);
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
      return tree.close(true, Clock::now() + 5s);
    }
    if (rank == 1) {
      check(next(tree).bytes == "go", "nothing before rank 0's word");
      return tree.close(true, Clock::now() + 5s);
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
    check(tree.receive(Clock::now() + 50ms).kind == Kind::Nothing, "and never again");
    tree.send(1, "go");
    check(next(tree).kind == Kind::PeerLost, "rank 1 leaves");
  });
}

TEST_CASE("every rank learns of the loss of rank 0, and a poll takes what is there") {
  const Hosts hosts = GENERATE(Hosts::One, Hosts::OneEach);
  run_trees(4, hosts, [&](int rank, SocketTree& tree) {
    if (rank == 0) {
      for (int peer = 1; peer < 4; ++peer) tree.send(peer, "last words");
      return tree.close(true, Clock::now() + 5s);
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
    check(tree.receive(Clock::now() + 20s).kind == Kind::Nothing, "a wake before waiting");
    const auto start = Clock::now();
    check(tree.receive(start + 30ms).kind == Kind::Nothing, "wakes are not counted");
    check(Clock::now() >= start + 30ms, "so this one waited for its deadline");
    std::thread waker([&] { tree.wake(); });
    check(tree.receive(Clock::now() + 20s).kind == Kind::Nothing, "a wake while waiting");
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
    check(tree.receive(Clock::now() + 300ms).kind == Kind::Nothing, "nobody says anything");
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
    tree.close(true, start + 100ms);
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
    tree.close(true, Clock::now() + 5s);
  });
}

TEST_CASE("a loss is told to the neighbours alone, and the rest of the tree stays") {
  run_trees(6, Hosts::TwoInTurns, [&](int rank, SocketTree& tree) {
    if (rank == 3) return tree.close(true, Clock::now() + 5s);
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
    tree.close(true, Clock::now() + 5s);
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

TEST_CASE("a wait of a tree ends when the descriptor that is given to it is readable") {
  run_trees(1, Hosts::One, [](int, SocketTree& tree) {
    const ronde::UniqueFd descriptor(::eventfd(1, EFD_CLOEXEC));
    CHECK_FALSE(tree.wait(Clock::now() + 1h, descriptor.get()));
    tree.wake();
    CHECK(tree.wait(Clock::now() + 1h, -1));
  });
}
