// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ronde/stats.h"

namespace ronde::cuda {

/// Something that is expensive to open and to close, as a mapping of a peer's memory. Closed with
/// its last pointer.
using Registration = std::shared_ptr<void>;

/// The allocation that a registration is of.
struct Region {
  int owner = 0;  ///< the rank whose addresses they are
  std::uint64_t base = 0;
  std::size_t bytes = 0;
  /// Memory that was freed and allocated again has another one at the same address.
  std::string identity;
  friend bool operator==(const Region&, const Region&) = default;
};

/// Registrations that are kept for the next time. Beyond a limit of bytes the least recently used
/// are closed, but never one in use. An allocation that overlaps others says that its owner has
/// freed those: they are dropped.
///
/// Thread-safety: full; one opens or closes at a time. Its registrations may outlive it.
class RegistrationCache {
 public:
  using Open = std::function<Registration()>;

  /// `limit_bytes`: of what is kept, but for what is in use. Not `enabled`: nothing is kept, and
  /// each call opens (RONDE_REGISTRATION_CACHE=0).
  RegistrationCache(bool enabled, std::size_t limit_bytes);
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  /// The registration of the region, opened if there is none. It stays open while the pointer
  /// lives. What `open` throws passes, and nothing is kept then.
  Registration get(const Region& region, const Open& open);

  /// Forgets everything.
  void clear();

  /// Hits, misses, evictions for room and for overlap, entries, bytes, and the time that opening
  /// and closing took.
  StatsGroup stats() const;

 private:
  struct Entry {
    Region region;
    Registration registration;
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
