// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <latch>
#include <stdexcept>

#include "backends/socket/socket_tree.h"
#include "core/src/base/fields.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/thread_exchange.h"

namespace ronde::test {

using namespace std::chrono_literals;
using net::Clock;
using net::SocketTree;
using net::TreeOptions;
using Kind = Incoming::Kind;

/// The blob of a rank of `host` in the first exchange, for tests that play the rank.
inline std::string introduction(const std::string& host) {
  return pack_fields({net::version_of_this_build(), host, "20000", "", "1"});
}

/// TwoInTurns: the even ranks share a host, and so do the odd ones.
enum class Hosts { One, OneEach, TwoInTurns };

inline TreeOptions options_on(Hosts hosts, int rank, int ranks) {
  TreeOptions options = {
      .rank = rank, .size = ranks, .deadline = Clock::now() + 20s, .offer_loopback = true};
  if (hosts == Hosts::OneEach) options.host = "host " + std::to_string(rank);
  if (hosts == Hosts::TwoInTurns) options.host = "host " + std::to_string(rank % 2);
  return options;
}

/// Runs `body` as every rank, each on a thread with a tree of its own.
inline void run_trees(int ranks, Hosts hosts, const std::function<void(int, SocketTree&)>& body) {
  ThreadExchange exchange(ranks);
  run_ranks(ranks, [&](int rank) {
    SocketTree tree(options_on(hosts, rank, ranks), exchange.of(rank));
    body(rank, tree);
  });
}

/// Returns the next message or loss; throws if there is none within 20 s.
inline Incoming next(SocketTree& tree) {
  Incoming incoming = tree.receive(Clock::now() + 20s);
  if (incoming.kind == Kind::Nothing) throw std::runtime_error("nothing came within 20 s");
  return incoming;
}

/// Each rank sends its parent its number and waits for those of its children; all close once all
/// have.
inline Topology meet_and_close(const std::unique_ptr<Transport>& transport, std::latch& done) {
  const Topology& topology = transport->topology();
  if (topology.parent() >= 0) transport->send(topology.parent(), std::to_string(topology.rank));
  std::vector<int> heard;
  while (heard.size() < topology.children().size()) {
    const Incoming incoming = transport->receive(Clock::now() + 20s);
    check(incoming.kind == Kind::Message, "a message from a child");
    check_equal(incoming.bytes, std::to_string(incoming.peer), "its number");
    heard.push_back(incoming.peer);
  }
  std::ranges::sort(heard);
  check(heard == topology.children(), "each child once");
  done.arrive_and_wait();
  transport->close(true, Clock::now() + 5s);
  return topology;
}

}  // namespace ronde::test
