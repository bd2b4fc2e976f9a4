// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "backends/cuda/device_context.h"

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

/// A peer's memory at an address of this process. The driver counts how often a context has opened
/// a handle, and unmaps the memory when it is closed for the last time.
class MappedMemory {
 public:
  /// Maps the allocation that `memory` is in, of rank `owner`, whose GPU need not be visible here.
  /// Throws DriverError.
  MappedMemory(std::shared_ptr<const DeviceContext> context, const ExportedMemory& memory,
               int owner);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  /// Where `memory` is, which is of the same allocation.
  DevicePointer address_of(const ExportedMemory& memory) const noexcept {
    return base_ + memory.offset;
  }

 private:
  const std::shared_ptr<const DeviceContext> context_;
  DevicePointer base_ = 0;
};

/// Host memory that is page-locked meanwhile.
class PinnedRange {
 public:
  /// Throws DriverError, also if some of it is page-locked already.
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
