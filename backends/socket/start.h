// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "backends/socket/rendezvous.h"
#include "ronde/config.h"
#include "ronde/plugin/transport.h"

namespace ronde {

/// How the ranks of a start connect to each other.
struct NetworkOptions {
  /// How long to wait for the other ranks, in seconds (RONDE_INIT_TIMEOUT_S).
  double init_timeout_s = 120.0;
  /// Replaces this host's identity (RONDE_HOST_ID). Ranks of different identities use TCP.
  std::string host = {};
  /// Lets TCP peers try 127.0.0.1 as well, which leads nowhere on another machine.
  bool offer_loopback = false;
  /// Refuses ranks of several hosts, for builds that cannot move data between hosts.
  bool one_host = true;
  std::string job_key = {};  ///< RONDE_JOB_KEY
  PortRange ports = {};      ///< RONDE_PORT_RANGE
};

/// Converts a limit in seconds, as Config has them; rounds up, and returns at most 30 years.
inline std::chrono::milliseconds milliseconds_of(double seconds) {
  constexpr double kLongest = 1e9;
  return std::chrono::ceil<std::chrono::milliseconds>(
      std::chrono::duration<double>(std::min(seconds, kLongest)));
}

}  // namespace ronde

namespace ronde::net {

/// The numbers that a rank was started with.
struct StartFacts {
  int rank = 0;
  int size = 1;
  int local_rank = -1;  ///< -1: not known
};

/// Options of a tree from those of the network.
TreeOptions tree_options(const std::string& transport, int rank, int size,
                         const NetworkOptions& options, Clock::time_point deadline);

/// Throws UsageError unless `rank` is one of 0 to `size` - 1.
void check_numbers(int rank, int size);

/// Compares the ranks' facts and hosts over `exchange`, and connects the ranks. Throws UsageError,
/// on every rank, if the ranks disagree on their number or on a local rank, or are on several hosts
/// although `options` forbids that; else as SocketTree. `transport`: its name.
std::unique_ptr<Transport> connect_ranks(const std::string& transport, const StartFacts& own,
                                         const NetworkOptions& options, Clock::time_point deadline,
                                         const Exchange& exchange);

}  // namespace ronde::net
