// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/segment_mover.h"

#include <algorithm>

namespace ronde::cuda {

void SegmentMover::move(std::span<const Move> moves, const How& how) {
  const std::size_t width = std::max(size_of(how.from), size_of(how.to));
  kernels::CopyArguments table{};
  for (const Move& move : moves) {
    const auto* const source = static_cast<const std::byte*>(move.source);
    auto* const target = static_cast<std::byte*>(move.target);
    for (std::size_t done = 0; done < move.count;) {
      if (table.count == kernels::kMostSegments) {
        kernels_.copy(stream_, how, table);
        table = {};
      }
      const std::size_t count = std::min<std::size_t>(move.count - done, kernels::kMostElements);
      table.segments[table.count++] = {
          source != nullptr ? source + done * size_of(how.from) : nullptr,
          target + done * size_of(how.to), static_cast<std::uint32_t>(count), table.tiles};
      table.tiles += static_cast<std::uint32_t>(kernels::tiles_of(count, width));
      done += count;
    }
  }
  if (table.count > 0) kernels_.copy(stream_, how, table);
}

}  // namespace ronde::cuda
