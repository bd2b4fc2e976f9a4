// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "backends/shm/slots/chunks.h"
#include "ronde/topology.h"

namespace ronde::hierarchical {

/// Division of the reduction among the ranks. A round has at most as many shards as the smallest
/// host has ranks, and fewer where their messages would be too small: a shard belongs to one local
/// rank of every host, and where there are fewer, to others from round to round. It is divided
/// again among its owners, one a host.
struct Shards {
  std::size_t hosts = 1;
  std::size_t own_host = 0;
  std::size_t largest_host = 1;  ///< how many ranks it has
  std::size_t count = 1;
  std::size_t least_message = 0;  ///< bytes, if a round has them
  /// None on a local rank that the smallest host does not have: it only adds its input.
  std::optional<std::size_t> own;
  /// The ranks that own this rank's shard, by host; empty without one.
  std::vector<int> owners;

  /// A round of all rounds.
  struct Round {
    std::uint64_t number = 0;
    std::size_t elements = 0;
  };

  /// The elements of the shard that a local rank owns in a round; none if it owns no shard of it.
  shm::Slice shard(std::size_t owner, const Round& round, std::size_t element_bytes) const;
  /// The elements of each owner's part of this rank's shard, in the order of hosts.
  std::vector<std::size_t> parts(const Round& round, std::size_t element_bytes) const;
};

Shards shards_of(const Topology& topology, std::size_t least_message = 0);

}  // namespace ronde::hierarchical
