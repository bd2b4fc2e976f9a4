// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/src/base/system.h"
#include "ronde/config.h"
#include "ronde/topology.h"

namespace ronde::net {

using Clock = std::chrono::steady_clock;

/// Gives the blobs of all ranks, in rank order, to every rank. All ranks call it together; it
/// throws if they do not come in time. All have been started by the first call of it.
using Exchange = std::function<std::vector<std::string>(std::string_view blob)>;

/// "0.1.0 for Linux x86_64": ranks of which two differ do not understand each other.
std::string version_of_this_build();

struct TreeOptions {
  std::string transport = "socket";  ///< its name
  int rank = 0;
  int size = 1;
  /// All ranks must be connected by then. The first deadline of any rank holds for all.
  Clock::time_point deadline = Clock::now() + std::chrono::minutes(2);
  /// Another identity than this host's. Ranks of different identities use TCP.
  std::string host = {};
  /// Let TCP peers try 127.0.0.1 as well.
  bool offer_loopback = false;
  std::string job_key = {};  ///< RONDE_JOB_KEY
  PortRange ports = {};      ///< RONDE_PORT_RANGE
  std::string version = version_of_this_build();
};

/// A connected neighbour in the tree of Topology.
struct Peer {
  int rank = -1;
  UniqueFd socket;
  /// Its process, where this process can see it; otherwise 0.
  pid_t pid = 0;
};

struct Meeting {
  Topology topology;
  /// The first of those in the TreeOptions of all ranks.
  Clock::time_point deadline;
  std::vector<Peer> peers = {};
  /// Children that did not come in time, and a text that says so. There is no exception, as this
  /// rank has to stay until the others know of them.
  std::vector<int> missing = {};
  std::string missing_text = {};
};

/// Connects every rank with its neighbours: by abstract Unix sockets within a host, by TCP across
/// hosts. Both sides prove that they belong to this job by its key and a random token that came
/// with the exchange. Throws GroupError if the rank's parent cannot be reached; UsageError on every
/// rank, with one text, if their versions differ.
Meeting meet(const TreeOptions& options, const Exchange& exchange);

}  // namespace ronde::net
