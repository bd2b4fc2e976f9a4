// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "backends/cuda/ipc/registrations.h"
#include "ronde/stats.h"

namespace ronde::cuda {

/// Keeps mappings of peers' memory. Beyond a limit of bytes the least recently used ones are
/// closed, but none in use. An allocation that overlaps others of its owner shows that these were
/// freed: they are dropped.
///
/// Thread-safety: full; one thread opens or closes at a time. Its mappings may outlive it.
class RegistrationCache {
 public:
  /// `limit_bytes`: the limit of kept mappings, those in use excepted. Not `enabled`: each call
  /// opens a mapping, and none is kept (RONDE_REGISTRATION_CACHE=0).
  RegistrationCache(bool enabled, std::size_t limit_bytes);

  /// Maps the allocation of rank `owner` that has `memory`, unless a mapping is kept. It stays open
  /// while the pointer lives. Throws DriverError, and then keeps nothing.
  std::shared_ptr<MappedMemory> map(const std::shared_ptr<const DeviceContext>& context,
                                    const ExportedMemory& memory, int owner);

  void clear();

  /// Hits, misses, evictions for room and for overlap, entries, bytes, and times to open and close.
  StatsGroup stats() const;

 private:
  struct Entry {
    ExportedMemory memory;
    std::shared_ptr<MappedMemory> mapping;
    std::uint64_t last_used = 0;  ///< in uses of the cache
  };
  /// By owner and base; no two of an owner overlap.
  using Entries = std::map<std::pair<int, std::uint64_t>, Entry>;
  struct Counts {
    std::uint64_t hits = 0, misses = 0, evicted_for_room = 0, evicted_for_overlap = 0, open_ns = 0,
                  close_ns = 0;
  };

  Entries::iterator close(Entries::iterator entry);
  void make_room();

  const bool enabled_;
  const std::size_t limit_bytes_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Entries entries_;
  std::size_t bytes_ = 0;
  std::uint64_t uses_ = 0;
  Counts counts_;
};

}  // namespace ronde::cuda
