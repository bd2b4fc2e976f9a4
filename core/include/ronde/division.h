// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace ronde {

// Division of memory and elements among ranks.

/// Return the address `bytes` behind `base`.
/// @{
inline std::byte* advanced(void* base, std::size_t bytes) {
  return static_cast<std::byte*>(base) + bytes;
}
inline const std::byte* advanced(const void* base, std::size_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}
/// @}

/// Returns the least multiple of `unit` that is not below `value`.
constexpr std::size_t rounded_up(std::size_t value, std::size_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

/// The parts of the ranks if a total is divided as evenly as can be: the first ranks have one more.
class EvenParts {
 public:
  /// Divides `total` among `ranks`.
  constexpr EvenParts(std::size_t total, std::size_t ranks)
      : even_(total / ranks), rest_(total % ranks) {}

  /// The beginning and the size of a rank's part.
  /// @{
  constexpr std::size_t offset(std::size_t rank) const {
    return rank * even_ + std::min(rank, rest_);
  }
  constexpr std::size_t count(std::size_t rank) const { return even_ + (rank < rest_ ? 1 : 0); }
  /// @}

 private:
  std::size_t even_;
  std::size_t rest_;
};

/// Returns the counts of all ranks.
inline std::vector<std::size_t> even_counts(std::size_t total, std::size_t ranks) {
  const EvenParts parts(total, ranks);
  std::vector<std::size_t> counts(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) counts[rank] = parts.count(rank);
  return counts;
}

/// A buffer that consists of one part a rank, in rank order. All counts are in the same unit.
class Parts {
 public:
  /// A piece of a part, by its place in the buffer.
  struct Piece {
    std::size_t offset;  ///< from the beginning of the buffer
    std::size_t count;   ///< units of it
  };

  /// `unit`: number of units in one of `counts`, such as the bytes of an element.
  Parts(std::span<const std::size_t> counts, std::size_t unit) {
    for (const std::size_t count : counts) offsets_.push_back(offsets_.back() + count * unit);
  }

  /// The number of parts.
  std::size_t size() const noexcept { return offsets_.size() - 1; }
  /// The beginning and the size of a rank's part, the size of all parts, and that of the largest.
  /// @{
  std::size_t offset(std::size_t rank) const { return offsets_[rank]; }
  std::size_t count(std::size_t rank) const { return offsets_[rank + 1] - offsets_[rank]; }
  std::size_t total() const noexcept { return offsets_.back(); }
  std::size_t largest() const {
    std::size_t most = 0;
    for (std::size_t rank = 0; rank < size(); ++rank) most = std::max(most, count(rank));
    return most;
  }
  /// @}
  /// Returns at most `most` units of `rank`'s part, behind the first `done`.
  Piece piece(std::size_t rank, std::size_t done, std::size_t most) const {
    const std::size_t skipped = std::min(done, count(rank));
    return {offset(rank) + skipped, std::min(most, count(rank) - skipped)};
  }

 private:
  std::vector<std::size_t> offsets_ = {0};  ///< of every part, and the end of the last
};

}  // namespace ronde
