// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/base/chunk_layout.h"

#include <algorithm>

namespace ronde::gpu {

ChunkLayout::ChunkLayout(std::span<const Segment> segments, std::size_t capacity,
                         std::size_t alignment)
    : segments_(segments), capacity_(capacity), alignment_(alignment) {}

bool ChunkLayout::next() {
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
