// SPDX-License-Identifier: Apache-2.0
#include "ronde/symmetric_heap.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ronde/division.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// Returns the first offset from `begin` on where `bytes`, at least one, are not reserved.
std::optional<std::size_t> first_free(const std::map<std::size_t, std::size_t>& reserved,
                                      std::size_t size, std::size_t bytes, std::size_t begin) {
  if (begin > size) return std::nullopt;
  bytes = std::max<std::size_t>(bytes, 1);
  std::size_t offset = rounded_up(begin, SymmetricHeap::kAlignment);
  for (const auto& [start, length] : reserved) {
    if (start >= offset && start - offset >= bytes) break;
    offset = std::max(offset, rounded_up(start + length, SymmetricHeap::kAlignment));
  }
  if (offset > size || size - offset < bytes) return std::nullopt;
  return offset;
}

}  // namespace

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
  const std::lock_guard lock(mutex_);
  return first_free(reserved_, this->bytes(), bytes, begin);
}

bool SymmetricHeap::reserve(std::size_t offset, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (first_free(reserved_, this->bytes(), bytes, offset) != offset) return false;
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
