// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace ronde {

/// Data that consists of one part a rank, of which every chunk takes a piece. Counts are in the
/// stream's units.
class Parts {
 public:
  /// `unit`: how many units one of `counts` is.
  Parts(std::span<const std::size_t> counts, std::size_t unit) : pieces_(counts.size()) {
    for (const std::size_t count : counts) counts_.push_back(count * unit);
  }

  std::size_t size() const noexcept { return counts_.size(); }

  /// Takes up to `most` units of every part, behind the first `done`; returns their sum.
  std::size_t cut(std::size_t done, std::size_t most) {
    done_ = done;
    std::size_t total = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      pieces_[i] = counts_[i] > done ? std::min(most, counts_[i] - done) : 0;
      total += pieces_[i];
    }
    return total;
  }

  /// Units of every part in this chunk.
  std::span<const std::size_t> pieces() const noexcept { return pieces_; }

  /// Calls `visit(offset, count)` for every piece; `offset` counts from the first part's beginning.
  template <typename Visit>
  void for_each(Visit visit) const {
    std::size_t offset = done_;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (pieces_[i] > 0) visit(offset, pieces_[i]);
      offset += counts_[i];
    }
  }

 private:
  std::vector<std::size_t> counts_;
  std::vector<std::size_t> pieces_;
  std::size_t done_ = 0;
};

}  // namespace ronde
