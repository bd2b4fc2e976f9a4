// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "ronde/plugin/calls.h"

namespace ronde::gpu {

/// A part of a segment, and its position in a buffer, in elements.
struct Piece {
  const Segment* segment = nullptr;
  std::size_t offset = 0;    ///< within the segment
  std::size_t count = 0;     ///< not 0
  std::size_t position = 0;  ///< in the buffer
};

/// Lays a list of segments into a buffer, chunk after chunk. Pieces are aligned for wide accesses,
/// and gaps between them are unused. The layout depends on the counts alone: it is equal on all
/// ranks.
class ChunkLayout {
 public:
  /// `capacity`: elements of the buffer, at least one. `alignment`: that of positions, in elements.
  ChunkLayout(std::span<const Segment> segments, std::size_t capacity, std::size_t alignment)
      : segments_(segments), capacity_(capacity), alignment_(alignment) {}

  /// Lays the next chunk; false if none is left.
  bool next();

  /// The chunk's pieces, in the order of their positions.
  std::span<const Piece> pieces() const noexcept { return pieces_; }
  /// Elements of the buffer up to the end of the last piece.
  std::size_t extent() const noexcept { return extent_; }

 private:
  const std::span<const Segment> segments_;
  const std::size_t capacity_;
  const std::size_t alignment_;
  std::size_t segment_ = 0;
  std::size_t offset_ = 0;
  std::size_t extent_ = 0;
  std::vector<Piece> pieces_;
};

inline bool ChunkLayout::next() {
  pieces_.clear();
  extent_ = 0;
  while (segment_ < segments_.size()) {
    const Segment& segment = segments_[segment_];
    const std::size_t position = (extent_ + alignment_ - 1) / alignment_ * alignment_;
    const std::size_t left = segment.count - offset_;
    if (left > 0) {
      if (position >= capacity_) break;
      const std::size_t count = std::min(left, capacity_ - position);
      pieces_.push_back({&segment, offset_, count, position});
      extent_ = position + count;
      offset_ += count;
      if (count < left) break;
    }
    ++segment_;
    offset_ = 0;
  }
  return !pieces_.empty();
}

}  // namespace ronde::gpu
