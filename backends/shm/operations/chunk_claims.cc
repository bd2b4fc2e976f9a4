// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/operations/chunk_claims.h"

namespace ronde::shm {

// Zero bytes are lines of zero, whichever rank comes first.
ChunkClaims::ChunkClaims(std::span<std::byte> memory, std::size_t rank, std::size_t ranks)
    : lines_(reinterpret_cast<Line*>(memory.data()), 1 + ranks), rank_(rank) {}

std::optional<std::uint64_t> ChunkClaims::claim(std::uint64_t end) noexcept {
  std::atomic<std::uint64_t>& claimed = lines_[0].value;
  std::atomic<std::uint64_t>& mine = working_on(rank_).value;
  std::uint64_t next = claimed.load(std::memory_order_acquire);
  while (next < end) {
    mine.store(next + 1, std::memory_order_release);
    // Releases what this rank said before.
    if (claimed.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      return next;
    }
  }
  mine.store(0, std::memory_order_release);
  return std::nullopt;
}

void ChunkClaims::finish() noexcept {
  working_on(rank_).value.store(0, std::memory_order_release);
}

bool ChunkClaims::finished(std::uint64_t end) const noexcept {
  if (lines_[0].value.load(std::memory_order_acquire) < end) return false;
  for (const Line& line : lines_.subspan(1)) {
    const std::uint64_t chunk = line.value.load(std::memory_order_acquire);
    if (chunk != 0 && chunk <= end) return false;
  }
  return true;
}

}  // namespace ronde::shm
