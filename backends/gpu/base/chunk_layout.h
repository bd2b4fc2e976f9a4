// SPDX-License-Identifier: Apache-2.0
#pragma once

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
  ChunkLayout(std::span<const Segment> segments, std::size_t capacity, std::size_t alignment);

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

}  // namespace ronde::gpu
