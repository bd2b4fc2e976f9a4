// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "backends/gpu/driver/device_context.h"

namespace ronde::cuda {

/// The driver allocates blocks of this size, which several smaller allocations share. Other
/// processes map whole blocks.
constexpr std::size_t kBlockBytes = std::size_t{2} << 20;

/// Memory of a GPU, allocated by the driver, so that other processes can map it (which is not so
/// for all of the framework's).
///
/// Thread-safety: as a pointer. Its work must have run before it is destroyed.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// `bytes`: not 0. Throws DriverError, of result() kOutOfMemory if there is too little.
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

class PinnedBlock;

/// Page-locked host memory, for asynchronous copies between host and GPU. Pinning takes about 1 ms
/// per MiB, so unused blocks, whose sizes are powers of two, are kept up to a limit.
///
/// Thread-safety: full. Its blocks may outlive it.
class PinnedPool {
 public:
  /// `keep_bytes`: the limit of unused memory.
  PinnedPool(std::shared_ptr<const DeviceContext> context, std::size_t keep_bytes);

  /// A block of at least `bytes`, which are at least 1. Throws DriverError.
  PinnedBlock take(std::size_t bytes);

 private:
  friend class PinnedBlock;
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

/// Memory of a PinnedPool, to which its destructor gives it back.
///
/// Thread-safety: as a pointer.
class PinnedBlock {
 public:
  PinnedBlock() = default;

  std::byte* data() const noexcept { return memory_.get(); }
  /// At least the bytes that were asked for.
  std::size_t bytes() const noexcept { return memory_.get_deleter().bytes; }
  /// For copies: the driver distinguishes kinds of memory by address.
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
