// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "backends/cuda/addresses.h"
#include "backends/cuda/segment_mover.h"

namespace ronde::cuda {

/// Parts of all ranks that lie one after the other in a tensor, and go through a buffer in chunks:
/// there they are `each` elements apart, and a chunk begins behind the first `done` elements of
/// each part.
struct RankParts {
  std::span<const std::size_t> counts;  ///< elements by rank
  std::size_t done = 0;
  std::size_t each = 0;

  /// The elements of a rank's part in the chunk.
  std::size_t piece(std::size_t rank) const noexcept {
    return counts[rank] > done ? std::min(counts[rank] - done, each) : 0;
  }

  /// Calls `visit(rank, element)` for those that have some: the first one of the chunk, in the
  /// tensor. Begins with the rank `first`, and goes on from the last rank to rank 0.
  template <typename Visit>
  void for_each(Visit visit, std::size_t first = 0) const {
    std::size_t before = std::accumulate(
        counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(first), std::size_t{0});
    for (std::size_t turn = 0; turn < counts.size(); ++turn) {
      const std::size_t rank = (first + turn) % counts.size();
      if (rank == 0) before = 0;
      if (piece(rank) > 0) visit(rank, before + done);
      before += counts[rank];
    }
  }

  /// From a tensor, whose elements have `input_width` bytes, into the buffer, where they have
  /// `width`. A null input stands for neutral elements.
  std::vector<SegmentMover::Move> moves_in(const void* input, std::size_t input_width,
                                           DevicePointer buffer, std::size_t width) const {
    std::vector<SegmentMover::Move> moves;
    for_each([&](std::size_t rank, std::size_t element) {
      moves.push_back({.source = input != nullptr ? at(input, element, input_width) : nullptr,
                       .target = writable(buffer + rank * each * width),
                       .count = piece(rank)});
    });
    return moves;
  }
};

}  // namespace ronde::cuda
