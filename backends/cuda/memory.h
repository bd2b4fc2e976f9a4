// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/cuda/device_context.h"

namespace ronde::cuda {

/// The driver takes memory from the GPU in blocks of so many bytes, and puts several smaller
/// allocations into one. What other processes map is whole blocks.
constexpr std::size_t kBlockBytes = std::size_t{2} << 20;

/// Memory of a GPU, made by the driver itself: other processes can map it (the framework's may be
/// of a kind that they cannot).
///
/// Thread-safety: as a pointer. Work on it has to be over before it is destroyed.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// `bytes`: not 0. Throws DriverError, with result() kOutOfMemory where there is too little.
  DeviceMemory(std::shared_ptr<const DeviceContext> context, std::size_t bytes);
  ~DeviceMemory() { free(); }
  DeviceMemory(DeviceMemory&& other) noexcept
      : context_(std::move(other.context_)),
        address_(std::exchange(other.address_, 0)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  DevicePointer address() const noexcept { return address_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  void free() noexcept;

  std::shared_ptr<const DeviceContext> context_;
  DevicePointer address_ = 0;
  std::size_t bytes_ = 0;
};

/// Page-locked host memory of a PinnedPool, to which it goes back.
///
/// Thread-safety: as a pointer.
class PinnedBlock;

/// Page-locked host memory, through which copies between host and GPU run beside other work.
/// Pinning takes about a millisecond a MiB, so blocks are kept: in sizes of powers of two, up to a
/// limit of what is kept unused.
///
/// Thread-safety: full. Its blocks may outlive it.
class PinnedPool {
 public:
  /// `keep_bytes`: the most that is kept while nobody uses it.
  PinnedPool(std::shared_ptr<const DeviceContext> context, std::size_t keep_bytes);

  /// A block of at least `bytes`, which are at least 1. Throws DriverError.
  PinnedBlock take(std::size_t bytes);

  struct Counts {
    std::uint64_t hits = 0;    ///< blocks that were there already
    std::uint64_t misses = 0;  ///< blocks that were pinned
    std::uint64_t bytes = 0;   ///< pinned at the moment, used or not
  };
  Counts counts() const;

 private:
  friend class PinnedBlock;
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

class PinnedBlock {
 public:
  PinnedBlock() = default;
  ~PinnedBlock() { give_back(); }
  PinnedBlock(PinnedBlock&& other) noexcept
      : pool_(std::move(other.pool_)),
        memory_(std::exchange(other.memory_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedBlock& operator=(PinnedBlock&& other) noexcept;

  std::byte* data() const noexcept { return memory_; }
  /// At least those that were asked for.
  std::size_t bytes() const noexcept { return bytes_; }
  /// For copies: the driver tells the two kinds of memory apart by their addresses.
  DevicePointer address() const noexcept { return reinterpret_cast<DevicePointer>(memory_); }

 private:
  friend class PinnedPool;
  PinnedBlock(std::shared_ptr<PinnedPool::Shared> pool, std::byte* memory, std::size_t bytes)
      : pool_(std::move(pool)), memory_(memory), bytes_(bytes) {}
  void give_back() noexcept;

  std::shared_ptr<PinnedPool::Shared> pool_;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ronde::cuda
