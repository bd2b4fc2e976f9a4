// SPDX-License-Identifier: Apache-2.0
#include "common/benchmark/cache_use.h"

#include <string>

namespace example {

std::optional<CacheUse> cache_use(const ronde::Stats& stats) {
  CacheUse use;
  for (const ronde::StatsGroup& group : stats) {
    for (const auto& [name, count] : group.counters) {
      // Also with a prefix, of a backend within another.
      const bool is_hits = name.ends_with("registration_hits");
      if (is_hits) use.hits += count;
      if (is_hits || name.ends_with("registration_misses")) use.uses += count;
    }
  }
  return use.uses > 0 ? std::make_optional(use) : std::nullopt;
}

}  // namespace example
