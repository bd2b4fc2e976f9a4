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
using MappedMemory = Owned<DevicePointer, &DriverApi::ipc_close_memory>;

/// Maps the whole allocation of rank `owner` that has `memory`; its GPU need not be visible here.
/// Throws DriverError.
MappedMemory map_memory(const std::shared_ptr<const DeviceContext>& context,
                        const ExportedMemory& memory, int owner);

/// Mappings of peers' allocations, by owner and base address, which stay open until they are
/// cleared. An allocation that took the place of another one at its address has another id, and
/// replaces its mapping: the owner freed the other one after all work that reads it.
///
/// Thread-safety: one thread at a time; add_to(): any.
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

  /// Adds hits, misses, mappings closed for room, entries, their bytes, and the time to open them.
  void add_to(StatsGroup& group) const;

 private:
  struct Entry {
    ExportedMemory memory;
    MappedMemory mapping;
  };

  std::map<std::pair<int, std::uint64_t>, Entry> entries_;  ///< by owner and base
  std::atomic<std::uint64_t> count_{0}, bytes_{0}, hits_{0}, misses_{0}, evicted_{0}, open_ns_{0};
};

}  // namespace ronde::cuda
