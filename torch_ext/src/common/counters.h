// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>

#include "ronde/runtime.h"

namespace ronde::detail {

/// The counters of the group that this process is in. `Counters` has atomic members and stats().
///
/// Thread-safety: every member may be called from any thread.
template <typename Counters>
class CurrentCounters {
 public:
  static std::shared_ptr<Counters> get() {
    const std::lock_guard lock(mutex_);
    return counters_;
  }

  /// Begins new ones, as a part of the stats of `runtime`.
  static void restart(Runtime& runtime) {
    const auto fresh = std::make_shared<Counters>();
    runtime.add_stats([fresh] { return fresh->stats(); });
    const std::lock_guard lock(mutex_);
    counters_ = fresh;
  }

 private:
  static inline std::mutex mutex_;
  static inline auto counters_ = std::make_shared<Counters>();  ///< guarded by mutex_
};

}  // namespace ronde::detail
