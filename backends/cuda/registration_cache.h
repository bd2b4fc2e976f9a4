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

/// Something that is expensive to open and to close, of a range of memory: a mapping of a peer's,
/// or a registration with NCCL. Closes it when destroyed.
class Registration {
 public:
  virtual ~Registration() = default;
  Registration() = default;
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
};

/// What a registration is of.
struct Region {
  /// Whose addresses they are: a rank, or whatever else tells address spaces apart.
  std::int64_t owner = 0;
  std::uint64_t base = 0;
  std::size_t bytes = 0;
  /// Of the allocation: memory that was freed and allocated again has another one at the same
  /// address. Whatever the owner's driver calls it: a buffer id, an IPC handle, or both.
  std::string identity;
};

/// Registrations that are kept for the next time. Beyond a limit of bytes the least recently used
/// are closed, but never one in use. Memory that overlaps what is kept, but is not of the same
/// allocation, says that the owner has freed the old one: all that overlaps is then dropped.
///
/// Thread-safety: full; one opens or closes at a time. Its registrations may outlive it.
class RegistrationCache {
 public:
  using Open = std::function<std::shared_ptr<Registration>()>;

  /// `limit_bytes`: of what is kept, but for what is in use. Not `enabled`: nothing is kept, and
  /// each call opens (RONDE_REGISTRATION_CACHE=0).
  RegistrationCache(bool enabled, std::size_t limit_bytes);
  ~RegistrationCache();
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  /// The registration of a range that holds the region, opened if there is none. It stays open
  /// while the pointer lives. What `open` throws passes, and nothing is kept then.
  std::shared_ptr<Registration> get(const Region& region, const Open& open);

  /// Forgets what is of that owner: it has left, or its memory is gone.
  void drop(std::int64_t owner);
  /// Forgets everything.
  void clear();

  /// Hits, misses, evictions for room and for overlap, entries, bytes, and the time that opening
  /// and closing took.
  StatsGroup stats() const;

 private:
  struct Entry {
    Region region;
    std::shared_ptr<Registration> registration;
    std::uint64_t last_used = 0;  ///< in uses of the cache
  };
  /// By owner and base; no two of an owner overlap.
  using Entries = std::map<std::pair<std::int64_t, std::uint64_t>, Entry>;
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
