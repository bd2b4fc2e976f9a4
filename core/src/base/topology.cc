// SPDX-License-Identifier: Apache-2.0
#include "ronde/topology.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "ronde/error.h"

namespace ronde {
namespace {

std::vector<int> number_by_first_appearance(const std::vector<int>& hosts) {
  std::map<int, int> numbers;
  std::vector<int> numbered;
  numbered.reserve(hosts.size());
  for (const int host : hosts) {
    numbered.push_back(numbers.try_emplace(host, static_cast<int>(numbers.size())).first->second);
  }
  return numbered;
}

/// Returns the number of ranks of each host.
std::vector<int> ranks_per_host(const std::vector<int>& host_of) {
  const int hosts = host_of.empty() ? 0 : *std::ranges::max_element(host_of) + 1;
  std::vector<int> ranks(static_cast<std::size_t>(hosts), 0);
  for (const int host : host_of) ++ranks[static_cast<std::size_t>(host)];
  return ranks;
}

/// Returns for how many hosts a tree of this depth has room.
std::int64_t room_in_tree(int leaders_below, int depth) {
  std::int64_t room = 1;
  for (int level = 0; level < depth; ++level) room = 1 + room * leaders_below;
  return room;
}

/// Returns the smallest number of leaders below one that makes the tree no deeper than
/// `most_below` does: rank 0 then has the fewest messages, and the way down takes the least time.
int even_leaders_below(int hosts, int most_below) {
  int depth = 0;
  while (room_in_tree(most_below, depth) < hosts) ++depth;
  int below = 1;
  while (room_in_tree(below, depth) < hosts) ++below;
  return below;
}

}  // namespace

int Topology::hosts() const noexcept {
  return static_cast<int>(leaders.size());
}

bool Topology::is_homogeneous() const {
  const std::vector<int> ranks = ranks_per_host(host_of);
  return std::ranges::adjacent_find(ranks, std::not_equal_to<>()) == ranks.end();
}

int Topology::parent_of(int other) const {
  if (other == 0) return -1;
  const auto host = static_cast<std::size_t>(host_of[static_cast<std::size_t>(other)]);
  if (leaders[host] != other) return leaders[host];
  return leaders[(host - 1) / static_cast<std::size_t>(leaders_below)];
}

bool Topology::is_at_or_below(int other, int above) const {
  while (other > above) other = parent_of(other);
  return other == above;
}

int Topology::depth_of(int other) const {
  int depth = 0;
  for (; other > 0; other = parent_of(other)) ++depth;
  return depth;
}

std::vector<int> Topology::children() const {
  std::vector<int> ranks;
  if (local_rank > 0) return ranks;
  for (int other = rank + 1; other < size; ++other) {
    if (parent_of(other) == rank) ranks.push_back(other);
  }
  return ranks;
}

std::vector<int> Topology::children_towards(const std::vector<int>& ranks) const {
  std::vector<int> towards;
  if (local_rank > 0) return towards;
  std::vector<bool> leads(host_of.size(), false);
  for (const int target : ranks) {
    int child = rank, hop = target;
    for (; hop > rank; hop = parent_of(hop)) child = hop;
    if (hop == rank && child != rank) leads[static_cast<std::size_t>(child)] = true;
  }
  for (int other = 0; other < size; ++other) {
    if (leads[static_cast<std::size_t>(other)]) towards.push_back(other);
  }
  return towards;
}

std::vector<int> Topology::host_ranks() const {
  const auto host = [this](int of) { return host_of[static_cast<std::size_t>(of)]; };
  std::vector<int> ranks;
  for (int other = 0; other < size; ++other) {
    if (host(other) == host(rank)) ranks.push_back(other);
  }
  return ranks;
}

Topology Topology::seen_by(int other) const {
  if (other < 0 || other >= size) {
    throw UsageError("rank " + std::to_string(other) + " does not exist in a group of " +
                     std::to_string(size) + " ranks");
  }
  Topology topology = *this;
  topology.rank = other;
  const auto own = host_of.begin() + other;
  topology.local_rank = static_cast<int>(std::count(host_of.begin(), own, *own));
  const std::vector<int> ranks = ranks_per_host(host_of);
  topology.local_size = ranks[static_cast<std::size_t>(*own)];

  const auto has_this_local_rank = [&](int count) { return count > topology.local_rank; };
  topology.cross_rank =
      static_cast<int>(std::count_if(ranks.begin(), ranks.begin() + *own, has_this_local_rank));
  topology.cross_size = static_cast<int>(std::ranges::count_if(ranks, has_this_local_rank));
  return topology;
}

Topology make_topology(int rank, const std::vector<int>& host_of, int most_below) {
  std::vector<int> hosts = number_by_first_appearance(host_of);
  std::vector<int> leaders;
  for (std::size_t other = 0; other < hosts.size(); ++other) {
    if (hosts[other] == std::ssize(leaders)) leaders.push_back(static_cast<int>(other));
  }
  Topology topology;
  topology.size = static_cast<int>(hosts.size());
  topology.host_of = SharedNumbers(std::move(hosts));
  topology.leaders = SharedNumbers(std::move(leaders));
  topology.leaders_below = even_leaders_below(topology.hosts(), most_below);
  return topology.seen_by(rank);
}

}  // namespace ronde
