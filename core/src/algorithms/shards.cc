// SPDX-License-Identifier: Apache-2.0
#include "core/src/algorithms/shards.h"

#include <algorithm>

namespace ronde {
namespace {

std::size_t line_of(std::size_t element_bytes) {
  return kLineBytes / element_bytes;
}

}  // namespace

Slice Shards::shard(std::size_t owner, const Round& round, std::size_t element_bytes) const {
  const std::size_t least = std::max<std::size_t>(least_message * hosts, 1);
  const std::size_t used =
      std::clamp<std::size_t>(round.elements * element_bytes / least, 1, count);
  // The first owner of a round is the one behind the last of the round before.
  const std::size_t first = static_cast<std::size_t>(round.number % count) * used % count;
  const std::size_t index = (owner + count - first) % count;
  if (index >= used) return {round.elements, round.elements};
  return even_slice(index, used, round.elements, line_of(element_bytes));
}

std::vector<std::size_t> Shards::parts(const Round& round, std::size_t element_bytes) const {
  const std::size_t all = shard(own.value(), round, element_bytes).count();
  std::vector<std::size_t> counts;
  for (std::size_t host = 0; host < hosts; ++host) {
    counts.push_back(even_slice(host, hosts, all, line_of(element_bytes)).count());
  }
  return counts;
}

Shards shards_of(const Topology& topology, std::size_t least_message) {
  Shards shards;
  shards.least_message = least_message;
  shards.hosts = static_cast<std::size_t>(topology.hosts());
  std::vector<std::vector<int>> ranks_of(shards.hosts);
  for (int rank = 0; rank < topology.size; ++rank) {
    const int host = topology.host_of[static_cast<std::size_t>(rank)];
    ranks_of[static_cast<std::size_t>(host)].push_back(rank);
  }
  shards.own_host =
      static_cast<std::size_t>(topology.host_of[static_cast<std::size_t>(topology.rank)]);
  shards.count = ranks_of[0].size();
  for (const std::vector<int>& ranks : ranks_of) {
    shards.count = std::min(shards.count, ranks.size());
    shards.largest_host = std::max(shards.largest_host, ranks.size());
  }
  const auto local_rank = static_cast<std::size_t>(topology.local_rank);
  if (local_rank >= shards.count) return shards;
  shards.own = local_rank;
  for (const std::vector<int>& ranks : ranks_of) shards.owners.push_back(ranks[local_rank]);
  return shards;
}

std::size_t round_bytes(const Shards& shards) noexcept {
  constexpr std::size_t kKiB = std::size_t{1} << 10;
  constexpr std::size_t kMost = 2048 * kKiB;
  constexpr std::size_t kMostOfHost = 256 * kKiB * kKiB;
  constexpr std::size_t kUnit = 4 * kKiB;
  const std::size_t wanted =
      std::clamp(kLeastMessage * shards.count * shards.hosts, kLeastMessage, kMost);
  const std::size_t most = kMostOfHost / (shards.largest_host * kRoundSlots);
  return std::max(std::min(wanted, most) / kUnit * kUnit, kUnit);
}

}  // namespace ronde
