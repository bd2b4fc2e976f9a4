// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <ronde/stats.h>

namespace example {

/// How often Ronde found what the registration cache of its backend for GPUs keeps, since init.
struct CacheUse {
  std::uint64_t hits = 0;
  std::uint64_t uses = 0;

  double hit_rate() const { return static_cast<double>(hits) / static_cast<double>(uses); }
};

/// Nothing where it was never used, as on the CPU.
std::optional<CacheUse> cache_use(const ronde::Stats& stats);

}  // namespace example
