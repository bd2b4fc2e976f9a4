// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <barrier>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "backends/socket/socket_tree.h"
#include "core/src/base/fields.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {

using namespace std::chrono_literals;
using net::Clock;
using net::SocketTree;
using net::TreeOptions;
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
inline std::string introduction(const std::string& host) {
  return pack_fields({net::version_of_this_build(), host, "20000", "", "1"});
}

/// Of 'TwoInTurns' the even ranks share one, and the odd ones the other.
enum class Hosts { One, OneEach, TwoInTurns };

/// Runs `body` as every rank, each on a thread with its own tree.
inline void run_trees(int ranks, Hosts hosts, const std::function<void(int, SocketTree&)>& body) {
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

/// The next thing that happens; throws if nothing does.
inline Incoming next(SocketTree& tree) {
  Incoming incoming = tree.receive(Clock::now() + 20s);
  if (incoming.kind == Kind::Nothing) throw std::runtime_error("nothing came within 20 s");
  return incoming;
}

}  // namespace ronde::test
