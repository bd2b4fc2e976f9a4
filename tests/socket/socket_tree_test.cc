// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/socket_tree.h"

#include <catch2/catch.hpp>
#include <deque>
#include <fstream>
#include <future>

#include <sys/eventfd.h>
#include <sys/resource.h>

#include "core/src/base/system.h"
#include "ronde/error.h"
#include "tests/socket/trees.h"
#include "tests/support/ranks/ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

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

TEST_CASE("messages of many ranks arrive whole and in order, and then the loss of rank 0") {
  const Hosts hosts = GENERATE(Hosts::One, Hosts::OneEach);
  constexpr int kRanks = 1 + kMostLeadersBelow;  // all below rank 0
  constexpr int kMessages = 50;
  run_trees(kRanks, hosts, [&](int rank, SocketTree& tree) {
    check(tree.topology().size == kRanks && tree.topology().rank == rank, "topology");
    check(tree.topology().hosts() == (hosts == Hosts::One ? 1 : kRanks), "hosts");
    // The first one is empty.
    const auto text = [](int from, int to, int i) {
      return pattern(static_cast<std::size_t>(i * 37 % 5000), from * 1000 + to * 100 + i);
    };
    for (int peer = 0; peer < kRanks; ++peer) {
      if ((peer == 0) == (rank == 0)) continue;
      for (int i = 0; i < kMessages; ++i) tree.send(peer, text(rank, peer, i));
    }
    std::vector<int> seen(kRanks, 0);
    for (int i = 0; i < (rank == 0 ? (kMessages + 1) * (kRanks - 1) : kMessages); ++i) {
      const Incoming incoming = next(tree);
      check(incoming.kind == Kind::Message, "a message");
      const int count = seen[static_cast<std::size_t>(incoming.peer)]++;
      const bool is_last = count == kMessages;
      check(incoming.bytes == (is_last ? "end" : text(incoming.peer, rank, count)), "in order");
    }
    if (rank != 0) tree.send(0, "end");
    // Rank 0 leaves first. Rank 1 polls, the others wait.
    if (rank == 0) return tree.close(true, Clock::now() + 5s);
    Incoming loss;
    const auto give_up = Clock::now() + 20s;
    while (loss.kind == Kind::Nothing && Clock::now() < give_up) {
      loss = rank == 1 ? tree.poll() : next(tree);
    }
    check(loss.kind == Kind::PeerLost && loss.peer == 0, "the loss of rank 0");
  });
}

TEST_CASE("large messages cross both ways, close sends what is queued, then comes a loss") {
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
    const Incoming loss = next(tree);
    check(loss.kind == Kind::PeerLost && loss.peer == 0, "then the loss of rank 0");
    check(loss.bytes == "its connection was closed", "with its reason");
    tree.send(0, "into the void");
    check(tree.receive(Clock::now() + 50ms).kind == Kind::Nothing, "the loss comes once");
  });
}

TEST_CASE("a wait ends by wake, now or the next time, and by a descriptor that is readable") {
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
    const UniqueFd descriptor(::eventfd(1, EFD_CLOEXEC));
    check(!tree.wait(Clock::now() + 1h, descriptor.get()), "the descriptor is readable");
    tree.wake();
    check(tree.wait(Clock::now() + 1h, -1), "a wake is reported");
  });
}

namespace {

/// The number of voluntary context switches of the calling thread.
long switches() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

/// The kernel's letter for the state of a thread of this process: 'S' for a sleeping one.
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
      // One switch to sleep, and some for locks: far fewer than in a loop of short sleeps.
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
    check(tree.receive(Clock::now() + 300ms).kind == Kind::Nothing, "no message");
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

TEST_CASE("only neighbours in the tree exchange messages and learn of a loss") {
  // Ranks 0 and 1 lead; 2 and 4 are children of 0, 3 and 5 of 1.
  const std::vector<std::vector<int>> neighbours = {{1, 2, 4}, {0, 3, 5}, {0}, {1}, {0}, {1}};
  run_trees(6, Hosts::TwoInTurns, [&](int rank, SocketTree& tree) {
    const std::vector<int>& mine = neighbours[static_cast<std::size_t>(rank)];
    for (int peer = -1; peer <= 6; ++peer) {
      const auto send = [&] { tree.send(peer, "x"); };
      if (std::ranges::find(mine, peer) != mine.end()) {
        send();
      } else {
        check_contains(text_of<Error>(send), "not its neighbour");
      }
    }
    std::deque<Incoming> later;  // a neighbour may be ahead of the others
    for (std::size_t received = 0; received < mine.size();) {
      Incoming incoming = next(tree);
      if (incoming.bytes == "x") {
        ++received;
      } else {
        later.push_back(std::move(incoming));
      }
    }
    const auto following = [&] {
      if (later.empty()) return next(tree);
      Incoming incoming = std::move(later.front());
      later.pop_front();
      return incoming;
    };
    if (rank == 3) return tree.close(true, Clock::now() + 5s);
    if (rank == 1) {
      const Incoming loss = following();
      check(loss.kind == Kind::PeerLost && loss.peer == 3, "the loss of its child");
      tree.send(0, "my child died");
      tree.send(5, "your sibling died");
    }
    if (rank == 0) {
      const Incoming message = following();
      check(message.peer == 1 && message.bytes == "my child died", "the message of the leader");
      tree.send(2, "end");
      tree.send(4, "end");
      check(next(tree).kind == Kind::PeerLost, "a rank that leaves now");
    }
    if (rank == 2 || rank == 4) check(next(tree).bytes == "end", "nothing before");
    if (rank == 5) check(next(tree).bytes == "your sibling died", "nothing before");
    tree.close(true, Clock::now() + 5s);
  });
}
