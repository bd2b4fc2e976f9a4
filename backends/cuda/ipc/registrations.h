// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "backends/gpu/driver/device_context.h"

namespace ronde::cuda {

/// What a peer needs to map memory of a GPU: plain bytes, for the control plane.
struct ExportedMemory {
  IpcMemHandle handle{};  ///< of the whole allocation
  std::uint64_t buffer_id = 0;
  std::uint64_t base = 0;    ///< of the allocation, an address of its owner
  std::uint64_t size = 0;    ///< of the allocation, in bytes
  std::uint64_t offset = 0;  ///< of the memory within it
  std::uint64_t bytes = 0;   ///< of the memory
};

/// Exports memory to peers; empty if IPC cannot export it (expandable segments, cudaMallocAsync),
/// and it has to be copied into memory that it can. Throws DriverError.
std::optional<ExportedMemory> export_memory(const DeviceContext& context, DevicePointer address,
                                            std::size_t bytes);

/// A peer's memory, mapped into this process. The driver counts how often a context has opened a
/// handle, and unmaps the memory at the last close.
class MappedMemory {
 public:
  /// Maps the allocation of rank `owner` that has `memory`; its GPU need not be visible here.
  /// Throws DriverError.
  MappedMemory(std::shared_ptr<const DeviceContext> context, const ExportedMemory& memory,
               int owner);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  /// The address of `memory`, which is of the same allocation.
  DevicePointer address_of(const ExportedMemory& memory) const noexcept {
    return base_ + memory.offset;
  }

 private:
  const std::shared_ptr<const DeviceContext> context_;
  DevicePointer base_ = 0;
};

/// Page-locks host memory while it lives.
class PinnedRange {
 public:
  /// Throws DriverError, also if some of it is page-locked already.
  PinnedRange(std::shared_ptr<const DeviceContext> context, void* memory, std::size_t bytes);
  ~PinnedRange();
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;

  /// The address for the GPU.
  DevicePointer address() const noexcept { return address_; }

 private:
  const std::shared_ptr<const DeviceContext> context_;
  void* const memory_;
  DevicePointer address_ = 0;
};

}  // namespace ronde::cuda
