// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "backends/shm/slots/chunks.h"
#include "backends/shm/slots/slot_buffer.h"
#include "ronde/topology.h"

namespace ronde::hierarchical {

/// The least size of a message in bytes: a round has fewer shards if messages would be smaller.
inline constexpr std::size_t kLeastMessage = std::size_t{64} << 10;

/// The division of a reduction among the ranks. A round has at most as many shards as the smallest
/// host has ranks, and fewer if their messages would be too small. A shard belongs to one local
/// rank of every host; if there are fewer shards than owners, the owners alternate from round to
/// round. The owners, one a host, divide a shard into parts.
struct Shards {
  std::size_t hosts = 1;
  std::size_t own_host = 0;
  std::size_t largest_host = 1;  ///< the number of its ranks
  std::size_t count = 1;
  std::size_t least_message = 0;  ///< in bytes; smaller only if a round is
  /// The own shard; none on a local rank that the smallest host lacks, which only adds its input.
  std::optional<std::size_t> own;
  /// The ranks that own this rank's shard, by host; empty without a shard.
  std::vector<int> owners;

  /// A round, by its number in the slot buffer.
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

/// Returns the shape of the slot buffer of this rank's host; slots have the same size on all hosts.
shm::SlotBufferShape slot_buffer_shape(const Topology& topology);

}  // namespace ronde::hierarchical
