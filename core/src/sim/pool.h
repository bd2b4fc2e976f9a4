// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ronde {

/// Items by an index that stays the same while they are there, without an allocation for each.
///
/// Thread-safety: none.
template <typename Item>
class Pool {
 public:
  using Index = std::uint32_t;

  Index add(Item item) {
    if (unused_.empty()) {
      items_.push_back(std::move(item));
      return static_cast<Index>(items_.size() - 1);
    }
    const Index index = unused_.back();
    unused_.pop_back();
    items_[index] = std::move(item);
    return index;
  }
  /// Removes an item.
  Item take(Index index) {
    unused_.push_back(index);
    return std::exchange(items_[index], Item());
  }

  Item& operator[](Index index) { return items_[index]; }
  /// Above all indices.
  std::size_t size() const noexcept { return items_.size(); }

 private:
  std::vector<Item> items_;
  std::vector<Index> unused_;
};

}  // namespace ronde
