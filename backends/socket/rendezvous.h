// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/socket/unique_fd.h"

namespace ronde::net {

using Clock = std::chrono::steady_clock;

/// Gives the blobs of all ranks, in rank order, to every rank. All ranks call it together; it
/// throws if they do not come in time.
using Exchange = std::function<std::vector<std::string>(std::string_view blob)>;

struct StarOptions {
  int rank = 0;
  int size = 1;
  /// By when all ranks have to be connected.
  std::chrono::milliseconds timeout{120'000};
  /// Another identity than this host's. Ranks of different identities use TCP.
  std::string host = {};
  /// Let TCP peers try 127.0.0.1 as well.
  bool offer_loopback = false;
};

/// A connected counterpart: rank 0 has one for every other rank, the others have rank 0.
struct Peer {
  int rank = -1;
  UniqueFd socket;
  /// Its process, where this process can see it; otherwise 0.
  pid_t pid = 0;
};

struct Meeting {
  std::vector<std::string> hosts;  ///< host identity of every rank
  std::vector<Peer> peers;
};

/// Connects every rank with rank 0: by an abstract Unix socket within a host, by TCP across hosts.
/// Both sides prove that they belong to this job by random tokens that came with the exchange.
/// Throws GroupError naming who is missing.
Meeting meet(const StarOptions& options, const Exchange& exchange);

}  // namespace ronde::net
