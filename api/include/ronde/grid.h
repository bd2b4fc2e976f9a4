// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ronde/process_set.h"

namespace ronde {

class Runtime;

/// All ranks as a grid of 2 to 4 dimensions, for programs that divide data, tensors and layers at
/// once: `Grid grid({data, tensor, pipeline})`. Ranks are numbered row-major, the last axis
/// fastest, so that the neighbours along it share a host. For each axis there is the process set of
/// the ranks that differ from this one along that axis only.
///
/// Making and removing a grid is collective over all ranks; several grids are made in the same
/// order everywhere, or have tags that tell them apart. The destructor removes no set.
///
/// Thread-safety: const members may be called from any thread.
class Grid {
 public:
  /// Uses the default Runtime. Throws UsageError on every rank if the ranks give different
  /// dimensions, if these are not 2 to 4 positive numbers whose product is size(), or if a set
  /// cannot be made (then none is left); GroupError if the group is dead.
  explicit Grid(std::vector<int> dimensions, const std::string& tag = {});
  /// Uses the ranks of `runtime`, which must outlive remove().
  Grid(Runtime& runtime, std::vector<int> dimensions, const std::string& tag = {});

  Grid(Grid&&) noexcept = default;
  Grid& operator=(Grid&&) noexcept = default;
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  /// How many axes there are.
  int dimensions() const noexcept { return static_cast<int>(sizes_.size()); }

  // Axes count from 0, in the order in which the dimensions were given. These throw UsageError for
  // one that does not exist.

  /// This rank's row along `axis`: its rank in it is its coordinate. Throws UsageError after
  /// remove().
  ProcessSet set(int axis) const;
  /// Where this rank is.
  int coordinate(int axis) const;
  /// How many ranks there are along `axis`.
  int size(int axis) const;
  /// The rank, of the group, at a place. Throws UsageError if there is none.
  int rank_at(const std::vector<int>& coordinates) const;

  /// Removes the sets; every rank calls it. Throws UsageError on all ranks of a set of which a rank
  /// has an operation in flight. That set stays, the others are gone, and its ranks may call it
  /// again.
  void remove();

 private:
  std::size_t checked(int axis) const;
  std::vector<int> row_along(std::size_t axis) const;
  std::string make_sets(Runtime& runtime, const std::string& what);
  std::string remove_sets();

  std::vector<int> sizes_;        ///< by axis
  std::vector<int> coordinates_;  ///< of this rank, by axis
  std::vector<ProcessSet> sets_;  ///< by axis; the global one stands for none
  std::function<void(ProcessSet)> remove_set_;
};

}  // namespace ronde
