// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "ronde/ronde.h"

namespace ronde::detail {

/// The counters of this process, by world. `Counters` has atomic members and stats().
///
/// Thread-safety: every member may be called from any thread.
template <typename Counters>
class CurrentCounters {
 public:
  /// The counters of the world of `set`, which are a part of its stats.
  static std::shared_ptr<Counters> of(ProcessSet set) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Counters>& counters = by_world_[set.world];
    if (!counters) counters = begin(runtime_of(set));
    return counters;
  }

  /// Begins new counters of the world of init().
  static void restart(Runtime& runtime) {
    const std::lock_guard lock(mutex_);
    by_world_[kGlobalSet.world] = begin(runtime);
  }

 private:
  static std::shared_ptr<Counters> begin(Runtime& runtime) {
    const auto fresh = std::make_shared<Counters>();
    runtime.add_stats([fresh] { return fresh->stats(); });
    return fresh;
  }

  static inline std::mutex mutex_;
  static inline std::map<std::uint32_t, std::shared_ptr<Counters>>
      by_world_;  ///< guarded by mutex_
};

}  // namespace ronde::detail
