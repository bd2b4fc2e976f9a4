// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ronde {

/// A growing set of small numbers, one bit each: cache slots on the wire and in negotiation. `&=`,
/// `|=` and `-=` are intersection, union and difference; count() is the number of members.
class BitVector {
 public:
  BitVector() = default;
  explicit BitVector(std::vector<std::uint64_t> words) : words_(std::move(words)) {}

  void set(std::size_t bit, bool value = true) {
    if (!value) return reset(bit);
    if (bit / 64 >= words_.size()) words_.resize(bit / 64 + 1);
    words_[bit / 64] |= mask(bit);
  }
  void reset(std::size_t bit) {
    if (bit / 64 < words_.size()) words_[bit / 64] &= ~mask(bit);
  }
  bool test(std::size_t bit) const {
    return bit / 64 < words_.size() && (words_[bit / 64] & mask(bit)) != 0;
  }
  bool empty() const {
    for (const std::uint64_t word : words_) {
      if (word != 0) return false;
    }
    return true;
  }

  BitVector& operator&=(const BitVector& other) {
    if (words_.size() > other.words_.size()) words_.resize(other.words_.size());
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
    return *this;
  }

  BitVector& operator|=(const BitVector& other) {
    if (words_.size() < other.words_.size()) words_.resize(other.words_.size());
    for (std::size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }

  BitVector& operator-=(const BitVector& other) {
    for (std::size_t i = 0; i < words_.size() && i < other.words_.size(); ++i) {
      words_[i] &= ~other.words_[i];
    }
    return *this;
  }

  /// Calls `visit(bit)` in ascending order.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t word = words_[i]; word != 0; word &= word - 1) {
        visit(i * 64 + static_cast<std::size_t>(std::countr_zero(word)));
      }
    }
  }

  std::size_t count() const {
    std::size_t bits = 0;
    for (const std::uint64_t word : words_) bits += static_cast<std::size_t>(std::popcount(word));
    return bits;
  }

  const std::vector<std::uint64_t>& words() const noexcept { return words_; }

 private:
  static constexpr std::uint64_t mask(std::size_t bit) { return std::uint64_t{1} << (bit % 64); }

  std::vector<std::uint64_t> words_;
};

}  // namespace ronde
