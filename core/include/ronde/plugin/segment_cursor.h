// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "ronde/error.h"
#include "ronde/plugin/calls.h"

namespace ronde {

/// Returns the segment of a packed call. Throws ronde::Error that names the backend if there are
/// several.
inline const Segment& only_segment(std::span<const Segment> segments, std::string_view backend) {
  if (segments.size() == 1) return segments.front();
  throw Error("the " + std::string(backend) + " backend takes one packed segment, not " +
              std::to_string(segments.size()));
}

/// A position in a segment list, to walk it in chunks that need not end where segments do. The
/// list must outlive it.
class SegmentCursor {
 public:
  /// Starts at the first element.
  explicit SegmentCursor(std::span<const Segment> segments) : segments_(segments) {}

  /// Calls `visit(segment, offset, count)` for the next `elements` elements, piece by piece, and
  /// moves past them. No piece is empty.
  template <typename Visit>
  void advance(std::size_t elements, Visit visit) {
    while (elements > 0) {
      const Segment& segment = segments_[segment_];
      const std::size_t count = std::min(elements, segment.count - offset_);
      if (count > 0) visit(segment, offset_, count);
      elements -= count;
      offset_ += count;
      if (offset_ < segment.count) continue;
      ++segment_;
      offset_ = 0;
    }
  }

  /// Returns the number of next elements that lie in at most `pieces` pieces: at most `elements`,
  /// or all that are left. Ranks whose lists have equal counts get equal answers.
  std::size_t reach(std::size_t elements, std::size_t pieces) const noexcept {
    std::size_t reached = 0;
    std::size_t offset = offset_;
    for (std::size_t i = segment_; i < segments_.size() && reached < elements; ++i) {
      const std::size_t count = segments_[i].count - offset;
      offset = 0;
      if (count == 0) continue;
      if (pieces-- == 0) break;
      reached += count;
    }
    return std::min(reached, elements);
  }

 private:
  std::span<const Segment> segments_;
  std::size_t segment_ = 0;
  std::size_t offset_ = 0;
};

/// Returns the sum of the segments' counts.
inline std::size_t total_elements(std::span<const Segment> segments) noexcept {
  std::size_t total = 0;
  for (const Segment& segment : segments) total += segment.count;
  return total;
}

}  // namespace ronde
