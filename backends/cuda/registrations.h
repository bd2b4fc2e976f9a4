// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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

/// An allocation of a peer's that is open in this process.
///
/// Thread-safety: as a pointer.
class OpenHandle {
 public:
  /// Of a device that need not be visible here. Throws DriverError. `owner`: for texts.
  OpenHandle(std::shared_ptr<const DeviceContext> context, const IpcMemHandle& handle, int owner);
  ~OpenHandle();
  OpenHandle(const OpenHandle&) = delete;
  OpenHandle& operator=(const OpenHandle&) = delete;

  DevicePointer base() const noexcept { return base_; }

 private:
  const std::shared_ptr<const DeviceContext> context_;
  DevicePointer base_ = 0;
};

/// The allocations that are open, whichever process set uses them: some drivers open none twice.
///
/// Thread-safety: full. What it has opened may outlive it.
class OpenHandles {
 public:
  OpenHandles();

  /// Opens it unless it is open.
  std::shared_ptr<const OpenHandle> open(const std::shared_ptr<const DeviceContext>& context,
                                         const IpcMemHandle& handle, int owner);

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

/// A peer's memory at an address of this process.
class MappedMemory final : public Registration {
 public:
  explicit MappedMemory(std::shared_ptr<const OpenHandle> handle) : handle_(std::move(handle)) {}

  /// Where `memory` is, which is of the same allocation.
  DevicePointer address_of(const ExportedMemory& memory) const noexcept {
    return handle_->base() + memory.offset;
  }

 private:
  const std::shared_ptr<const OpenHandle> handle_;
};

/// The memory of rank `owner`, from the cache, or opened. Throws DriverError.
std::shared_ptr<MappedMemory> map_memory(RegistrationCache& cache, OpenHandles& handles,
                                         const std::shared_ptr<const DeviceContext>& context,
                                         const ExportedMemory& memory, int owner);

/// Host memory that is page-locked meanwhile.
class PinnedRange final : public Registration {
 public:
  /// Throws DriverError, with result() kHostMemoryAlreadyRegistered if some of it is page-locked.
  PinnedRange(std::shared_ptr<const DeviceContext> context, void* memory, std::size_t bytes);
  ~PinnedRange() override;

  /// Where the GPU finds it.
  DevicePointer address() const noexcept { return address_; }

 private:
  const std::shared_ptr<const DeviceContext> context_;
  void* const memory_;
  DevicePointer address_ = 0;
};

}  // namespace ronde::cuda
