// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace ronde {

/// The place of this rank in the group and on its host. A host's ranks are numbered (`local_rank`)
/// in the order of their global ranks; `cross_rank` is the position of this host among those that
/// have a rank with this local rank.
///
/// The control plane is a tree: each host has a leader, the lowest of its ranks; leaders
/// communicate with rank 0, which is one of them, and the other ranks with the leader of their
/// host.
struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
  /// Cores that the ranks of this host can use together: see Cores.
  int local_cores = 1;
  /// Index of the host of every rank, by rank: hosts are numbered by first appearance.
  std::vector<int> host_of = {0};
  /// The leader of every host.
  std::vector<int> leaders = {0};

  /// The number of hosts.
  int hosts() const noexcept;
  /// Returns whether every host has the same number of ranks.
  bool is_homogeneous() const;

  /// Returns the rank above `other` in the tree; -1 for rank 0.
  int parent_of(int other) const;
  /// Returns the rank above this one; -1 for rank 0.
  int parent() const { return parent_of(rank); }
  /// Returns the ranks below this one, ascending.
  std::vector<int> children() const;
  /// Returns the children that are among `ranks`, or are above some of them in the tree.
  std::vector<int> children_towards(const std::vector<int>& ranks) const;
  /// Returns the ranks of this rank's host, ascending.
  std::vector<int> host_ranks() const;
};

/// Returns the topology of `rank`, given the host index (any numbers) of every rank.
Topology make_topology(int rank, const std::vector<int>& host_of);

}  // namespace ronde
