// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "backends/gpu/driver/device_context.h"
#include "ronde/stats.h"

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

/// Exports memory to peers. Empty if IPC cannot export it (expandable segments, cudaMallocAsync):
/// the caller then copies the data into memory that IPC can export. Throws DriverError.
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

/// Mappings of peers' allocations, by owner and base address, which stay open until they are
/// cleared. An allocation that took the place of another one at its address has another id, and
/// replaces its mapping: the owner freed the other one after all work that reads it.
///
/// Thread-safety: one thread at a time; stats(): any.
class RegistrationCache {
 public:
  /// Returns the address of `memory` of rank `owner`, whose allocation is mapped unless it already
  /// is. Throws DriverError, and then keeps no mapping of it.
  DevicePointer map(const std::shared_ptr<const DeviceContext>& context,
                    const ExportedMemory& memory, int owner);

  /// Bytes of the mapped allocations.
  std::uint64_t bytes() const noexcept { return bytes_; }

  /// Closes all mappings; no queued work uses them.
  void clear() noexcept;
  /// The same, because others have no room.
  void make_room() noexcept;

  /// Hits, misses, mappings closed for room, entries, their bytes, and the time to open mappings.
  StatsGroup stats() const;

 private:
  struct Entry {
    ExportedMemory memory;
    std::unique_ptr<MappedMemory> mapping;
  };

  void close_overlapping(const ExportedMemory& memory, int owner);

  std::map<std::pair<int, std::uint64_t>, Entry> entries_;  ///< by owner and base
  std::atomic<std::uint64_t> count_{0}, bytes_{0}, hits_{0}, misses_{0}, evicted_{0}, open_ns_{0};
};

}  // namespace ronde::cuda
