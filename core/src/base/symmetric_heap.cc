// SPDX-License-Identifier: Apache-2.0
#include "ronde/symmetric_heap.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ronde/division.h"
#include "ronde/error.h"

namespace ronde {

SymmetricHeap::SymmetricHeap(std::vector<std::span<std::byte>> parts, std::size_t local_rank,
                             std::shared_ptr<void> owner)
    : parts_(std::move(parts)), local_rank_(local_rank), owner_(std::move(owner)) {
  const bool even = std::ranges::all_of(
      parts_, [this](std::span<std::byte> part) { return part.size() == parts_.front().size(); });
  if (local_rank_ >= parts_.size() || !even) {
    throw Error("a symmetric heap needs equal parts, and one of this rank");
  }
}

std::optional<std::size_t> SymmetricHeap::find(std::size_t bytes, std::size_t begin) const {
  if (begin > this->bytes()) return std::nullopt;
  bytes = std::max<std::size_t>(bytes, 1);  // as reserve() does
  const std::lock_guard lock(mutex_);
  std::size_t offset = rounded_up(begin, kAlignment);
  for (const auto& [start, length] : reserved_) {
    if (start >= offset && start - offset >= bytes) break;
    offset = std::max(offset, rounded_up(start + length, kAlignment));
  }
  if (offset > this->bytes() || this->bytes() - offset < bytes) return std::nullopt;
  return offset;
}

bool SymmetricHeap::reserve(std::size_t offset, std::size_t bytes) {
  if (offset % kAlignment != 0 || offset > this->bytes() || this->bytes() - offset < bytes) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  const auto next = reserved_.lower_bound(offset);
  if (next != reserved_.end() && next->first - offset < std::max<std::size_t>(bytes, 1)) {
    return false;
  }
  if (next != reserved_.begin()) {
    const auto& [start, length] = *std::prev(next);
    if (offset - start < length) return false;
  }
  reserved_.emplace(offset, std::max<std::size_t>(bytes, 1));
  return true;
}

void SymmetricHeap::release(std::size_t offset) {
  const std::lock_guard lock(mutex_);
  if (reserved_.erase(offset) == 0) throw Error("nothing of the symmetric heap is reserved there");
}

std::size_t SymmetricHeap::reserved_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [start, length] : reserved_) bytes += length;
  return bytes;
}

std::optional<std::size_t> SymmetricHeap::offset_of(const void* address,
                                                    std::size_t bytes) const noexcept {
  // Addresses of unrelated objects: compared as numbers.
  const auto begin = reinterpret_cast<std::uintptr_t>(own(0));
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (at < begin || at - begin > this->bytes()) return std::nullopt;
  const std::size_t offset = at - begin;
  return this->bytes() - offset >= bytes ? std::optional(offset) : std::nullopt;
}

}  // namespace ronde
