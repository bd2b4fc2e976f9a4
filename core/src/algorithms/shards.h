// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ronde/division.h"
#include "ronde/topology.h"

namespace ronde {

/// Bytes of a cache line, at which rounds, shards and parts begin.
inline constexpr std::size_t kLineBytes = 64;

/// Returns the elements of a round of an operation on `total` elements: rounds have about the same
/// size, at most `most_bytes`, and end at a cache line.
inline std::size_t chunk_elements(std::size_t total, std::size_t element_bytes,
                                  std::size_t most_bytes) {
  const std::size_t most = std::max<std::size_t>(most_bytes / element_bytes, 1);
  if (total <= most) return total;
  const std::size_t rounds = (total + most - 1) / most;
  const std::size_t unit = kLineBytes / element_bytes;
  const std::size_t even = (total + rounds - 1) / rounds;
  return std::min(rounded_up(even, unit), most);
}

/// The elements [begin, end) of a round.
struct Slice {
  std::size_t begin, end;

  std::size_t count() const noexcept { return end - begin; }
};

/// Returns the `index`-th of `slices` parts of [0, elements). The parts have about the same size
/// and begin at multiples of `unit`; the last ones may be empty.
inline Slice even_slice(std::size_t index, std::size_t slices, std::size_t elements,
                        std::size_t unit) noexcept {
  const std::size_t width = rounded_up((elements + slices - 1) / slices, unit);
  return {std::min(index * width, elements), std::min((index + 1) * width, elements)};
}

/// The least size of a message in bytes: a round has fewer shards if messages would be smaller.
inline constexpr std::size_t kLeastMessage = std::size_t{64} << 10;

/// The division of an allreduce over several hosts among the ranks, in rounds. A round has at most
/// as many shards as the smallest host has ranks, and fewer if their messages would be too small. A
/// shard belongs to one local rank of every host; if there are fewer shards than owners, the owners
/// alternate from round to round. The owners, one a host, divide a shard into parts.
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
  Slice shard(std::size_t owner, const Round& round, std::size_t element_bytes) const;
  /// The elements of each owner's part of this rank's shard, in the order of hosts.
  std::vector<std::size_t> parts(const Round& round, std::size_t element_bytes) const;
};

Shards shards_of(const Topology& topology, std::size_t least_message = 0);

/// Rounds in progress: so many that the network has work while a rank does not run.
inline constexpr std::size_t kRoundSlots = 8;

/// Returns the most bytes of a round, the same on all hosts.
std::size_t round_bytes(const Shards& shards) noexcept;

}  // namespace ronde
