// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace ronde {

/// The most leaders of other hosts that communicate with one leader.
inline constexpr int kMostLeadersBelow = 32;

/// Numbers by rank or by host, which never change: copies share them, as a large group has many.
///
/// Thread-safety: as std::shared_ptr.
class SharedNumbers {
 public:
  /// Keeps `numbers`.
  explicit SharedNumbers(std::vector<int> numbers)
      : numbers_(std::make_shared<const std::vector<int>>(std::move(numbers))) {}

  /// As those of std::vector.
  /// @{
  const int& operator[](std::size_t place) const noexcept { return (*numbers_)[place]; }
  const int& at(std::size_t place) const { return numbers_->at(place); }
  const int& back() const noexcept { return numbers_->back(); }
  std::size_t size() const noexcept { return numbers_->size(); }
  auto begin() const noexcept { return numbers_->begin(); }
  auto end() const noexcept { return numbers_->end(); }
  /// @}
  /// The numbers; valid for as long as a copy of this exists.
  operator const std::vector<int>&() const noexcept { return *numbers_; }  // NOLINT: is a vector
  /// Compares the numbers.
  friend bool operator==(const SharedNumbers& a, const std::vector<int>& b) {
    return *a.numbers_ == b;
  }

 private:
  std::shared_ptr<const std::vector<int>> numbers_;
};

/// The place of this rank in the group and on its host. A host's ranks are numbered (`local_rank`)
/// in the order of their global ranks; `cross_rank` is the position of this host among those that
/// have a rank with this local rank.
///
/// The control plane is a tree with rank 0 at its root: each host has a leader, the lowest of its
/// ranks, to which the other ranks of the host are connected; leaders form a tree in the order of
/// their hosts, so that every rank is above ranks of higher numbers only.
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
  SharedNumbers host_of{{0}};
  /// The leader of every host.
  SharedNumbers leaders{{0}};
  /// The most leaders below one: as few as keep the tree as flat as kMostLeadersBelow does.
  int leaders_below = 1;

  /// The number of hosts.
  int hosts() const noexcept;
  /// Returns whether every host has the same number of ranks.
  bool is_homogeneous() const;

  /// Returns the rank above `other` in the tree; -1 for rank 0.
  int parent_of(int other) const;
  /// Returns the rank above this one; -1 for rank 0.
  int parent() const { return parent_of(rank); }
  /// Returns whether messages of `other` reach rank 0 by way of `above`, or are its own.
  bool is_at_or_below(int other, int above) const;
  /// Returns the distance of `other` from rank 0 in the tree.
  int depth_of(int other) const;
  /// Returns the ranks below this one, ascending.
  std::vector<int> children() const;
  /// Returns the children that are among `ranks`, or are above some of them in the tree.
  std::vector<int> children_towards(const std::vector<int>& ranks) const;
  /// Returns the ranks of this rank's host, ascending.
  std::vector<int> host_ranks() const;
  /// Returns the topology of another rank. Its local_cores are those of this one. Throws UsageError
  /// if there is no such rank.
  Topology seen_by(int other) const;
};

/// Returns the topology of `rank`, given the host index (any numbers) of every rank. `most_below`:
/// of a tree that tests make deeper.
Topology make_topology(int rank, const std::vector<int>& host_of,
                       int most_below = kMostLeadersBelow);

}  // namespace ronde
