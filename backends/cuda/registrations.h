// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backends/cuda/device_context.h"
#include "backends/cuda/registration_cache.h"

namespace ronde::cuda {

/// What a peer needs to know of memory of a GPU to map it: plain bytes, for the control plane.
struct ExportedMemory {
  IpcMemHandle handle{};  ///< of the whole allocation
  std::uint64_t buffer_id = 0;
  std::uint64_t base = 0;    ///< of the allocation, an address of its owner
  std::uint64_t size = 0;    ///< of the allocation, in bytes
  std::uint64_t offset = 0;  ///< of the memory within it
  std::uint64_t bytes = 0;   ///< of the memory
};

/// Makes memory of this process known to peers; empty if it is of a kind that IPC cannot export
/// (expandable segments, cudaMallocAsync), and has to be copied into memory that it can. Throws
/// DriverError.
std::optional<ExportedMemory> export_memory(const DeviceContext& context, DevicePointer address,
                                            std::size_t bytes);

/// The allocations of peers that are open in this process, whichever process set uses them: some
/// drivers open none twice.
///
/// Thread-safety: full.
class OpenHandles {
 public:
  /// Where the allocation is; opens it unless it is open. Its GPU need not be visible here. Throws
  /// DriverError. `owner`: for texts. Each call is to be followed by one of close().
  DevicePointer open(const DeviceContext& context, const IpcMemHandle& handle, int owner);
  void close(const DeviceContext& context, const IpcMemHandle& handle) noexcept;

 private:
  struct Open {
    DevicePointer base = 0;
    std::size_t users = 0;
  };
  std::mutex mutex_;  ///< held while something is opened or closed
  std::map<std::array<char, 64>, Open> open_;
};

/// A peer's memory at an address of this process.
class MappedMemory final : public Registration {
 public:
  /// Maps the allocation that `memory` is in, of rank `owner`. Throws DriverError.
  MappedMemory(std::shared_ptr<const DeviceContext> context, std::shared_ptr<OpenHandles> handles,
               const ExportedMemory& memory, int owner);
  ~MappedMemory() override;

  /// Where `memory` is, which is of the same allocation.
  DevicePointer address_of(const ExportedMemory& memory) const noexcept {
    return base_ + memory.offset;
  }

 private:
  const std::shared_ptr<const DeviceContext> context_;
  const std::shared_ptr<OpenHandles> handles_;
  const IpcMemHandle handle_;
  const DevicePointer base_;
};

/// The memory of rank `owner`, from the cache, or opened. Throws DriverError.
std::shared_ptr<MappedMemory> map_memory(RegistrationCache& cache,
                                         const std::shared_ptr<OpenHandles>& handles,
                                         const std::shared_ptr<const DeviceContext>& context,
                                         const ExportedMemory& memory, int owner);

/// Host memory that is page-locked meanwhile.
class PinnedRange {
 public:
  /// Throws DriverError, with result() kHostMemoryAlreadyRegistered if some of it is page-locked.
  PinnedRange(std::shared_ptr<const DeviceContext> context, void* memory, std::size_t bytes);
  ~PinnedRange();
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;

  /// Where the GPU finds it.
  DevicePointer address() const noexcept { return address_; }

 private:
  const std::shared_ptr<const DeviceContext> context_;
  void* const memory_;
  DevicePointer address_ = 0;
};

}  // namespace ronde::cuda
