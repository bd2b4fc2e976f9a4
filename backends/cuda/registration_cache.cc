// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/registration_cache.h"

#include <algorithm>
#include <chrono>

namespace ronde::cuda {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t nanoseconds_since(Clock::time_point begin) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
}

std::uint64_t end_of(const Region& region) {
  return region.base + region.bytes;
}

}  // namespace

RegistrationCache::RegistrationCache(bool enabled, std::size_t limit_bytes)
    : enabled_(enabled), limit_bytes_(limit_bytes) {}

Registration RegistrationCache::get(const Region& region, const Open& open) {
  const std::lock_guard lock(mutex_);
  auto entry = entries_.upper_bound({region.owner, region.base});
  if (entry != entries_.begin()) --entry;
  while (entry != entries_.end() && entry->first < std::pair(region.owner, end_of(region))) {
    const Region& known = entry->second.region;
    if (known.owner != region.owner || end_of(known) <= region.base) {
      ++entry;
    } else if (known == region) {
      ++counts_.hits;
      entry->second.last_used = ++uses_;
      return entry->second.registration;
    } else {
      ++counts_.evicted_for_overlap;
      entry = close(entry);
    }
  }
  ++counts_.misses;
  const Clock::time_point begin = Clock::now();
  Registration registration = open();
  counts_.open_ns += nanoseconds_since(begin);
  if (enabled_) {
    entries_[{region.owner, region.base}] = {region, registration, ++uses_};
    bytes_ += region.bytes;
    make_room();
  }
  return registration;
}

void RegistrationCache::clear() {
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) entry = close(entry);
}

/// Of one that is in use only the cache's hold ends.
RegistrationCache::Entries::iterator RegistrationCache::close(Entries::iterator entry) {
  bytes_ -= entry->second.region.bytes;
  const Clock::time_point begin = Clock::now();
  const auto next = entries_.erase(entry);
  counts_.close_ns += nanoseconds_since(begin);
  return next;
}

void RegistrationCache::make_room() {
  while (bytes_ > limit_bytes_) {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->second.registration.use_count() > 1) continue;  // in use
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
