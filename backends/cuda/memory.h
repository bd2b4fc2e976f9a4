// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "backends/cuda/addresses.h"
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

  DevicePointer address() const noexcept { return address_of(memory_.get()); }
  std::size_t bytes() const noexcept { return memory_.get_deleter().bytes; }

 private:
  struct Free {
    std::shared_ptr<const DeviceContext> context;
    std::size_t bytes;  ///< 0 without memory: a unique_ptr initialises its deleter
    void operator()(void* memory) const noexcept;
  };
  std::unique_ptr<void, Free> memory_;
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

 private:
  friend class PinnedBlock;
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

class PinnedBlock {
 public:
  PinnedBlock() = default;

  std::byte* data() const noexcept { return memory_.get(); }
  /// At least those that were asked for.
  std::size_t bytes() const noexcept { return memory_.get_deleter().bytes; }
  /// For copies: the driver tells the two kinds of memory apart by their addresses.
  DevicePointer address() const noexcept { return address_of(memory_.get()); }

 private:
  friend class PinnedPool;
  struct GiveBack {
    std::shared_ptr<PinnedPool::Shared> pool;
    std::size_t bytes;  ///< 0 without memory: a unique_ptr initialises its deleter
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte, GiveBack> memory_;
};

}  // namespace ronde::cuda
