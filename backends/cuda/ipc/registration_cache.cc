// SPDX-License-Identifier: Apache-2.0
// A lookup walks the owner's entries that overlap the allocation: an equal one is a hit, and others
// are of freed memory and dropped. A miss opens a mapping, and closes the least recently used ones.
#include "backends/cuda/ipc/registration_cache.h"

#include <chrono>

namespace ronde::cuda {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t nanoseconds_since(Clock::time_point begin) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
}

std::uint64_t end_of(const ExportedMemory& memory) {
  return memory.base + memory.size;
}

/// Memory that was freed and allocated again at its address has another id. Handles are compared as
/// well: the ids of a process that takes the place of another may repeat.
bool is_same_allocation(const ExportedMemory& one, const ExportedMemory& other) {
  return one.base == other.base && one.size == other.size && one.buffer_id == other.buffer_id &&
         one.handle.reserved == other.handle.reserved;
}

}  // namespace

RegistrationCache::RegistrationCache(bool enabled, std::size_t limit_bytes)
    : enabled_(enabled), limit_bytes_(limit_bytes) {}

std::shared_ptr<MappedMemory> RegistrationCache::map(
    const std::shared_ptr<const DeviceContext>& context, const ExportedMemory& memory, int owner) {
  const std::lock_guard lock(mutex_);
  auto entry = entries_.upper_bound({owner, memory.base});
  if (entry != entries_.begin()) --entry;
  while (entry != entries_.end() && entry->first < std::pair(owner, end_of(memory))) {
    const ExportedMemory& known = entry->second.memory;
    if (entry->first.first != owner || end_of(known) <= memory.base) {
      ++entry;
    } else if (is_same_allocation(known, memory)) {
      ++counts_.hits;
      entry->second.last_used = ++uses_;
      return entry->second.mapping;
    } else {
      ++counts_.evicted_for_overlap;
      entry = close(entry);
    }
  }
  ++counts_.misses;
  const Clock::time_point begin = Clock::now();
  auto mapping = std::make_shared<MappedMemory>(context, memory, owner);
  counts_.open_ns += nanoseconds_since(begin);
  if (enabled_) {
    entries_[{owner, memory.base}] = {memory, mapping, ++uses_};
    bytes_ += memory.size;
    make_room();
  }
  return mapping;
}

void RegistrationCache::clear() {
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) entry = close(entry);
}

/// Drops the entry; a mapping in use stays open.
RegistrationCache::Entries::iterator RegistrationCache::close(Entries::iterator entry) {
  bytes_ -= entry->second.memory.size;
  const Clock::time_point begin = Clock::now();
  const auto next = entries_.erase(entry);
  counts_.close_ns += nanoseconds_since(begin);
  return next;
}

void RegistrationCache::make_room() {
  while (bytes_ > limit_bytes_) {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->second.mapping.use_count() > 1) continue;  // in use
      const bool is_older =
          oldest == entries_.end() || entry->second.last_used < oldest->second.last_used;
      if (is_older) oldest = entry;
    }
    if (oldest == entries_.end()) return;
    ++counts_.evicted_for_room;
    close(oldest);
  }
}

StatsGroup RegistrationCache::stats() const {
  const std::lock_guard lock(mutex_);
  return {"registration_cache",
          {{"hits", counts_.hits},
           {"misses", counts_.misses},
           {"evicted_for_room", counts_.evicted_for_room},
           {"evicted_for_overlap", counts_.evicted_for_overlap},
           {"entries", entries_.size()},
           {"bytes", bytes_},
           {"open_us", counts_.open_ns / 1000},
           {"close_us", counts_.close_ns / 1000}}};
}

}  // namespace ronde::cuda
