// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ronde/plugin/backend.h"
#include "tools/bench/session/session.h"

namespace ronde::tool {

/// A way that messages take between ranks.
struct MessagePath {
  std::string name;                  ///< "shm", "mpi", "ucx"
  bool is_within_host = false;       ///< peers have the numbers of their host
  std::vector<std::size_t> sizes{};  ///< of the messages in bytes, ascending
  Backend* backend = nullptr;
};

/// What was seen of the messages from one rank to another over a path.
struct Link {
  int from = 0;
  int to = 0;
  bool is_within_host = true;
  std::uint64_t messages = 0;
  std::uint64_t wrong = 0;    ///< messages with a wrong byte
  std::string first_wrong{};  ///< message, size, byte, and what it is; empty if all are right
  double latency_us = 0;      ///< half of a round trip of the smallest message
  double largest_us = 0;      ///< from sending the largest message until its receipt is known
  /// These times over their medians among the links within hosts, or among those between hosts; of
  /// an even number of links the lower of the two in the middle is the median.
  double latency_ratio = 1;
  double largest_ratio = 1;

  bool is_slow(double factor) const { return latency_ratio > factor || largest_ratio > factor; }
};

/// Returns the byte that a message has at `index`. Bytes depend on their place, so that shifted or
/// swapped blocks differ, and on `seed`, so that those of an earlier message do.
std::byte check_byte(std::uint64_t seed, std::size_t index);

/// Sends messages over every link of `path`, one link after the other, and compares each byte that
/// arrives. The shortest times count, also of links that seem slow and are measured again. Every
/// rank returns the same, with ratios. Collective. Throws Error that names the link where a message
/// cannot be sent or does not arrive.
std::vector<Link> check_links(Session& session, const MessagePath& path, double slow_factor);

/// Sets the ratios of all links.
void compare_with_medians(std::vector<Link>& links);

}  // namespace ronde::tool
