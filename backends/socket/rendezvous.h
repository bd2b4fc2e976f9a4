// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/src/base/system.h"
#include "ronde/config.h"
#include "ronde/topology.h"

namespace ronde::net {

using Clock = std::chrono::steady_clock;

/// Returns the blobs of all ranks, in rank order, to every rank. All ranks call it together; it
/// throws if some do not in time. After the first call all ranks are known to have started.
using Exchange = std::function<std::vector<std::string>(std::string_view blob)>;

/// Returns a text such as "0.1.0 for Linux x86_64", which must be equal on all ranks.
std::string version_of_this_build();

struct TreeOptions {
  std::string transport = "socket";  ///< the transport's name
  int rank = 0;
  int size = 1;
  /// All ranks must be connected by then. The earliest deadline of any rank holds for all.
  Clock::time_point deadline = Clock::now() + std::chrono::minutes(2);
  /// Replaces this host's identity. Ranks of different identities use TCP.
  std::string host = {};
  /// Lets TCP peers try 127.0.0.1 as well.
  bool offer_loopback = false;
  std::string job_key = {};                    ///< RONDE_JOB_KEY
  PortRange ports = {};                        ///< RONDE_PORT_RANGE
  int most_leaders_below = kMostLeadersBelow;  ///< the same on all ranks
  std::string version = version_of_this_build();
};

inline constexpr std::size_t kTokenBytes = 16;

/// The addresses at which a rank's children reach it, and what they need to prove that they belong
/// to the job: Note [Bootstrap of the tree].
struct Endpoint {
  std::string unix_name;
  std::uint16_t port = 0;
  std::vector<std::string> addresses;
  std::string name;   ///< random name of this start, not secret
  std::string token;  ///< random, secret
};

std::string pack_endpoint(const Endpoint& endpoint);

/// Unpacks an endpoint. Throws GroupError that names `sender` if `bytes` are none.
Endpoint unpack_endpoint(std::string_view bytes, int sender);

/// A connected neighbour in the tree of Topology.
struct Peer {
  int rank = -1;
  UniqueFd socket;
  /// The rank's process, or 0 if this process cannot see it.
  pid_t pid = 0;
};

/// The result of meet().
struct Meeting {
  Topology topology;
  /// The earliest deadline in the TreeOptions of all ranks.
  Clock::time_point deadline;
  std::vector<Peer> peers = {};
  /// Children that are missing at the deadline, and a text that names them. There is no exception,
  /// as this rank has to stay until the others know about them.
  std::vector<int> missing = {};
  std::string missing_text = {};
};

/// Connects every rank to its neighbours: by abstract Unix sockets within a host, by TCP across
/// hosts. Both sides prove that they belong to this job by its key and by a random token from the
/// exchange. Throws GroupError if the rank's parent cannot be reached; UsageError, with the same
/// text on every rank, if their versions differ.
Meeting meet(const TreeOptions& options, const Exchange& exchange);

}  // namespace ronde::net
