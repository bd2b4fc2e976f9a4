// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "backends/shm/slots/chunks.h"
#include "ronde/topology.h"

namespace ronde::hierarchical {

/// Division of the reduction among the ranks. A round has as many shards as the smallest host has
/// ranks: shard s belongs to local rank s of every host. A shard is divided again among its
/// owners, one a host, each of which reduces its part for all hosts.
struct Shards {
  int ranks = 1;  ///< of all hosts
  std::size_t hosts = 1;
  std::size_t own_host = 0;
  std::size_t largest_host = 1;  ///< how many ranks it has
  std::size_t count = 1;
  /// None on a local rank that the smallest host does not have: it only adds its input.
  std::optional<std::size_t> own;
  /// The ranks that own this rank's shard, by host; empty without one.
  std::vector<int> owners;

  /// The elements of a shard in a round of `elements`.
  shm::Slice shard(std::size_t index, std::size_t elements, std::size_t element_bytes) const;
  /// The part of this rank's shard that `host` reduces, by its place in the round.
  shm::Slice part(std::size_t host, std::size_t elements, std::size_t element_bytes) const;
};

Shards shards_of(const Topology& topology);

}  // namespace ronde::hierarchical
