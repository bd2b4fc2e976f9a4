// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ronde/plugin/factory.h"
#include "tools/bench/base/pattern.h"
#include "tools/bench/session/session.h"

namespace ronde::tool {

/// Adds `check` to the command; `exit_code` is what the process shall end with: 1 if a byte was
/// wrong, 2 after a UsageError. `more`: transports that are checked beside those of the job.
void add_check(CLI::App& app, int& exit_code, const BackendRegistry& more = {});

/// A way that messages take between ranks.
struct MessagePath {
  std::string name;  ///< "shm", "mpi", "ucx"
  Backend& backend;
  bool is_within_host = false;  ///< peers have the numbers of their host
};

/// What the receiver saw of the messages from one rank to another over a path.
struct Link {
  int from = 0;
  int to = 0;
  bool is_within_host = true;
  int messages = 0;
  int wrong = 0;              ///< messages with a wrong byte
  std::string first_wrong{};  ///< message, size, byte, and what it is; empty if all are right
  double latency_us = std::numeric_limits<double>::max();  ///< half of the shortest round trip
  double bandwidth_gbs = 0;  ///< the best of the largest messages, each with its request
  /// These over their medians among the links within hosts, or among those between hosts; of an
  /// even number of links the better of the two in the middle is the median.
  double latency_ratio = 1;
  double bandwidth_ratio = 1;

  bool is_slow() const {
    constexpr double kSlow = 3;
    return latency_ratio > kSlow || bandwidth_ratio < 1 / kSlow;
  }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Link, from, to, is_within_host, messages, wrong, first_wrong,
                                   latency_us, bandwidth_gbs, latency_ratio, bandwidth_ratio)

/// Returns the rule of a message's bytes. They depend on their place, so that shifted or swapped
/// blocks differ, and on `seed`, so that those of an earlier message do.
ElementRule bytes_of(std::uint64_t seed);

/// Sends messages of one byte up to options().max_bytes over every link of `path`, one link after
/// the other, and compares each byte that arrives. Returns all links on every rank. Collective.
/// Throws Error that names the link where a message cannot be sent or does not arrive.
std::vector<Link> check_links(Session& session, const MessagePath& path);

/// Sets the ratios of all links.
void compare_with_medians(std::vector<Link>& links);

}  // namespace ronde::tool
