// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "ronde/ronde.h"
#include "ronde/stats.h"

namespace ronde::detail {

/// The counters of this process, by world. `Counters` has atomic members and stats().
///
/// Thread-safety: every member may be called from any thread.
template <typename Counters>
class CurrentCounters {
 public:
  /// Returns the counters of the world of `set`, which are part of its stats.
  static std::shared_ptr<Counters> of(ProcessSet set) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Counters>& counters = by_world_[set.world];
    if (!counters) counters = begin(runtime_of(set));
    return counters;
  }

  /// Starts new counters for the world of init().
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

/// Counts how gradients reached the memory in which they are reduced.
struct GradientCounters {
  std::atomic<std::uint64_t> placed{0};       ///< written there by backward
  std::atomic<std::uint64_t> accumulated{0};  ///< added there by backward
  std::atomic<std::uint64_t> copied{0};
  std::atomic<std::uint64_t> copied_bytes{0};

  StatsGroup stats() const {
    return {"gradients",
            {{"placed", placed},
             {"accumulated", accumulated},
             {"copied", copied},
             {"copied_bytes", copied_bytes}}};
  }
};

/// Counts what ronde::elastic::run() does in this group.
struct ElasticCounters {
  std::atomic<std::uint64_t> steps{0};
  std::atomic<std::uint64_t> nanoseconds{0};     ///< of the ends of steps, without after_step()
  std::atomic<std::uint64_t> received_bytes{0};  ///< of the state

  StatsGroup stats() const {
    return {"elastic",
            {{"steps", steps}, {"nanoseconds", nanoseconds}, {"received_bytes", received_bytes}}};
  }
};

/// Counts the work of batch norms over several ranks.
struct SyncBatchNormCounters {
  std::atomic<std::uint64_t> layers{0};     ///< forward passes of a layer over all ranks
  std::atomic<std::uint64_t> exchanges{0};  ///< collectives, of forward and backward
  std::atomic<std::uint64_t> bytes{0};      ///< sent by this rank

  StatsGroup stats() const {
    return {"sync_batch_norm", {{"layers", layers}, {"exchanges", exchanges}, {"bytes", bytes}}};
  }
};

}  // namespace ronde::detail
