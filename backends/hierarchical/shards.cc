// SPDX-License-Identifier: Apache-2.0
#include "backends/hierarchical/shards.h"

#include <algorithm>

namespace ronde::hierarchical {
namespace {

/// Elements of a cache line, at which shards and parts begin.
std::size_t line_of(std::size_t element_bytes) {
  constexpr std::size_t kLine = 64;
  return kLine / element_bytes;
}

}  // namespace

shm::Slice Shards::shard(std::size_t index, std::size_t elements, std::size_t element_bytes) const {
  return shm::even_slice(index, count, elements, line_of(element_bytes));
}

shm::Slice Shards::part(std::size_t host, std::size_t elements, std::size_t element_bytes) const {
  const shm::Slice whole = shard(own.value(), elements, element_bytes);
  const shm::Slice part = shm::even_slice(host, hosts, whole.count(), line_of(element_bytes));
  return {whole.begin + part.begin, whole.begin + part.end};
}

Shards shards_of(const Topology& topology) {
  Shards shards;
  shards.ranks = topology.size;
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

}  // namespace ronde::hierarchical
