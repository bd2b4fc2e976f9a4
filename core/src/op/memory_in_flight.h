// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <set>
#include <vector>

#include "core/src/op/submission.h"

namespace ronde {

/// The memory of operations in flight, so that none writes what another one reads or writes.
///
/// Note [Known memory]
/// Programs use the same memory in each step. So a range stays known when its operation has ended,
/// until another range overlaps it: known ranges are disjoint, and one that is entered again needs
/// no comparison with others. Each also points to the range that was entered after it the last
/// time, so that the next one is found without a search. A range that overlaps one that is being
/// read, and is only read itself, is kept apart.
class MemoryInFlight {
 public:
  MemoryInFlight() = default;
  MemoryInFlight(const MemoryInFlight&) = delete;
  MemoryInFlight& operator=(const MemoryInFlight&) = delete;

  /// Enters the memory of the operation, which has its key, or that of each member of a group.
  /// Throws UsageError if it writes memory that another one in flight uses, or reads what another
  /// one writes, be it of the same group; nothing is entered then.
  void enter(Submission& submission);

  /// Releases the memory of the operation. A second call does nothing.
  void leave(Submission& submission) noexcept;

 private:
  struct Range {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    bool is_written = false;
  };
  struct ByBegin {
    using is_transparent = void;
    bool operator()(const MemoryUse& a, const MemoryUse& b) const { return a.begin < b.begin; }
    bool operator()(std::uintptr_t a, const MemoryUse& b) const { return a < b.begin; }
  };
  using Known = std::set<MemoryUse, ByBegin>;

  void enter_one(Submission& submission);
  MemoryUse* enter_range(const Submission& submission, const Range& range);
  MemoryUse* find(const Submission& submission, const Range& range);
  MemoryUse* insert(Known::iterator before, const Range& range);
  Known::iterator forget(Known::iterator position);
  /// Removes const: callers change no order.
  static MemoryUse& at(Known::iterator position) { return const_cast<MemoryUse&>(*position); }
  static void compare(const Submission& submission, const Range& range, const MemoryUse& other);

  Known known_;
  std::size_t in_flight_ = 0;  ///< of known_
  /// Forgotten nodes: they are used again, and stay where they are, as others may point to them.
  std::vector<Known::node_type> forgotten_;
  std::list<MemoryUse> apart_;
  MemoryUse* last_ = nullptr;  ///< entered last, of known_
};

}  // namespace ronde
