// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace ronde {

/// Memory that the ranks of one host have all mapped: a part of equal size for each of them. A
/// buffer that lies at the same offset in every rank's part is symmetric (the term of OpenSHMEM),
/// and any rank can work on all ranks' buffers without a copy.
///
/// Pages exist once they are touched, by the rank that owns them or by a peer.
///
/// Thread-safety: every member may be called from any thread.
class SymmetricHeap {
 public:
  /// Blocks begin at multiples of this: a cache line.
  static constexpr std::size_t kAlignment = 64;

  /// `parts`: as mapped here, by local rank; all equally long. `owner` keeps them mapped.
  SymmetricHeap(std::vector<std::span<std::byte>> parts, std::size_t local_rank,
                std::shared_ptr<void> owner);

  /// Bytes of each part.
  std::size_t bytes() const noexcept { return parts_.front().size(); }
  /// The number of parts.
  std::size_t ranks() const noexcept { return parts_.size(); }

  /// Returns the lowest offset, from `begin` on, at which so many bytes are free in this rank's
  /// part.
  std::optional<std::size_t> find(std::size_t bytes, std::size_t begin = 0) const;
  /// Reserves memory; returns false if it is not free.
  bool reserve(std::size_t offset, std::size_t bytes);
  /// Releases the memory that was reserved at `offset`.
  void release(std::size_t offset);
  /// Returns the reserved bytes of this rank's part.
  std::size_t reserved_bytes() const;

  /// Returns the memory at `offset` in the part of a rank, as mapped here.
  std::byte* at(std::size_t local_rank, std::size_t offset) const noexcept {
    return parts_[local_rank].data() + offset;
  }
  /// Returns the memory at `offset` in this rank's part.
  std::byte* own(std::size_t offset) const noexcept { return at(local_rank_, offset); }

  /// Returns the offset of [address, address + bytes) in this rank's part, if it lies there.
  std::optional<std::size_t> offset_of(const void* address, std::size_t bytes) const noexcept;

 private:
  const std::vector<std::span<std::byte>> parts_;
  const std::size_t local_rank_;
  const std::shared_ptr<void> owner_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> reserved_;  ///< bytes by offset; guarded by mutex_
};

}  // namespace ronde
