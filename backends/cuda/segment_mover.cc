// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/segment_mover.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace ronde::cuda {

SegmentMover::SegmentMover(KernelSet& kernels, Stream& stream, EventPool& events,
                           PinnedPool& pinned)
    : kernels_(kernels), stream_(stream), events_(events), pinned_(pinned) {}

void SegmentMover::move(std::span<const Move> moves, const How& how) {
  KernelSet::CopyLaunch launch{
      .from = how.from, .to = how.to, .scaling = how.scaling, .op = how.op, .traffic = how.traffic};
  copies_.clear();
  bool fills = false;
  for (const Move& move : moves) {
    if (move.count == 0) continue;
    fills = fills || move.source == nullptr;
    copies_.push_back({move.source, move.target, move.count, 0});
  }
  // Nothing happens to the elements: bytes are copied, by the widest accesses.
  const bool normalises = how.from == DataType::Bool || (how.canonical && is_floating(how.from));
  if (how.from == how.to && how.scaling.is_identity() && !normalises && !fills) {
    for (kernels::SegmentCopy& copy : copies_) copy.count *= size_of(how.from);
    launch.from = launch.to = DataType::U8;
  }
  const std::size_t width = std::max(size_of(launch.from), size_of(launch.to));
  for (kernels::SegmentCopy& copy : copies_) {
    copy.first_tile = launch.tiles;
    launch.tiles += kernels::tiles_of(copy.count, width);
  }
  if (copies_.empty()) return;
  launch.table = upload(copies_);
  launch.count = static_cast<std::uint32_t>(copies_.size());
  kernels_.copy(stream_, launch);
}

void SegmentMover::reserve(std::size_t segments) {
  constexpr std::size_t kAtATime = 32;
  grow_table(segments * sizeof(kernels::SegmentCopy));
  std::vector<PinnedBlock> blocks;
  for (std::size_t i = 0; i < kAtATime; ++i) blocks.push_back(pinned_.take(table_.bytes()));
}

void SegmentMover::grow_table(std::size_t bytes) {
  if (bytes <= table_.bytes()) return;
  DeviceMemory larger(kernels_.context(), std::bit_ceil(std::max<std::size_t>(bytes, 16384)));
  if (table_.bytes() > 0) outgrown_.push_back(std::move(table_));
  table_ = std::move(larger);
}

DevicePointer SegmentMover::upload(const std::vector<kernels::SegmentCopy>& copies) {
  while (!in_flight_.empty() && in_flight_.front().copied.is_done()) in_flight_.pop_front();
  const std::size_t bytes = copies.size() * sizeof(kernels::SegmentCopy);
  grow_table(bytes);
  // As large as any: of fewer segments, too, it is what reserve() has made.
  Table table{pinned_.take(table_.bytes()), events_.take()};
  std::memcpy(table.staging.data(), copies.data(), bytes);
  stream_.copy(table_.address(), table.staging.address(), bytes, "sending a table of segments");
  stream_.record(table.copied);
  in_flight_.push_back(std::move(table));
  return table_.address();
}

}  // namespace ronde::cuda
