// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/src/algorithms/shards.h"
#include "ronde/division.h"
#include "ronde/dtype.h"
#include "ronde/plugin/segment_cursor.h"

namespace ronde::shm {

using ronde::chunk_elements;
using ronde::even_slice;
using ronde::Slice;

inline constexpr std::size_t kCacheLine = 64;
/// Processors fetch lines in pairs: counters of different writers stay that far apart.
inline constexpr std::size_t kLinePair = 2 * kCacheLine;

/// A part of a segment within a round.
struct Piece {
  std::size_t index;     ///< among the pieces of the round
  std::size_t position;  ///< its first element in the round
  std::size_t count;
  const Segment* segment;
  std::size_t offset;  ///< its first element in the segment

  /// Address of the input after the first `skipped` elements; null if there is no input.
  const std::byte* input(std::size_t skipped, std::size_t element_bytes) const noexcept {
    if (segment->input == nullptr) return nullptr;
    return advanced(segment->input, (offset + skipped) * element_bytes);
  }
  /// Null if the result is not wanted here.
  std::byte* output(std::size_t skipped, std::size_t element_bytes) const noexcept {
    if (segment->output == nullptr) return nullptr;
    return advanced(segment->output, (offset + skipped) * element_bytes);
  }

  /// The elements that also lie in `slice`.
  Slice within(const Slice& slice) const noexcept {
    const std::size_t begin = std::max(slice.begin, position);
    return {begin, std::max(begin, std::min(slice.end, position + count))};
  }
};

/// Walks a segment list round by round, in the same rounds on every rank.
class ChunkWalk {
 public:
  ChunkWalk(std::span<const Segment> segments, std::size_t total, std::size_t chunk,
            std::size_t most_pieces)
      : cursor_(segments),
        remaining_(total),
        chunk_(chunk),
        most_pieces_(segments.size() <= most_pieces ? 0 : most_pieces) {}

  bool at_end() const noexcept { return remaining_ == 0; }

  /// Elements of the next round.
  std::size_t next_count() const noexcept {
    const std::size_t count = std::min(chunk_, remaining_);
    return most_pieces_ == 0 ? count : cursor_.reach(count, most_pieces_);
  }

  /// The number of rounds that are left.
  std::uint64_t rounds() const {
    if (at_end()) return 0;
    if (most_pieces_ == 0) return (remaining_ + chunk_ - 1) / chunk_;
    std::uint64_t rounds = 0;
    for (ChunkWalk rest = *this; !rest.at_end(); ++rounds) rest.advance([](const Piece&) {});
    return rounds;
  }

  /// Calls `visit(piece)` for the pieces of the next round and moves past it.
  template <typename Visit>
  void advance(Visit visit) {
    const std::size_t count = next_count();
    std::size_t index = 0;
    std::size_t position = 0;
    cursor_.advance(count, [&](const Segment& segment, std::size_t offset, std::size_t elements) {
      visit(Piece{index++, position, elements, &segment, offset});
      position += elements;
    });
    remaining_ -= count;
  }

 private:
  SegmentCursor cursor_;
  std::size_t remaining_;
  std::size_t chunk_;
  std::size_t most_pieces_;  ///< 0: the list is too short to be limited
};

/// Makes the rounds of an allreduce through slots of `slot_bytes`, which hold elements of the wire
/// type.
inline ChunkWalk walk_of(const AllreduceCall& call, std::size_t slot_bytes,
                         std::size_t most_pieces) {
  const std::size_t total = total_elements(call.segments);
  return {call.segments, total,
          chunk_elements(total, size_of(call.effective_wire_dtype()), slot_bytes), most_pieces};
}

}  // namespace ronde::shm
