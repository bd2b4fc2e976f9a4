// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

namespace ronde {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

/// Returns the earlier time of those that there are.
inline std::optional<TimePoint> earlier(std::optional<TimePoint> a, std::optional<TimePoint> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

/// The clock of a simulation: of the rank whose engine runs.
class VirtualClock {
 public:
  virtual TimePoint now() const noexcept = 0;
  /// Lets time pass for an engine that polls operations: until `end`, or until one may have ended.
  virtual void pass(TimePoint end) = 0;

 protected:
  ~VirtualClock() = default;
};

/// The clock of the engine: core reads the time by this name alone.
class MonotonicClock {
 public:
  using time_point = TimePoint;
  using duration = Duration;

  static time_point now() noexcept {
    const VirtualClock* const simulated = simulated_.load(std::memory_order_relaxed);
    return simulated == nullptr ? std::chrono::steady_clock::now() : simulated->now();
  }
  /// To be called between two polls, which are repeated until `end`.
  static void pass(time_point end) {
    VirtualClock* const simulated = simulated_.load(std::memory_order_relaxed);
    if (simulated != nullptr) simulated->pass(end);
  }
  static bool is_simulated() noexcept { return simulated_.load(std::memory_order_relaxed); }
  /// Null: none. No engine may run.
  static void simulate(VirtualClock* clock) noexcept { simulated_.store(clock); }

 private:
  static inline std::atomic<VirtualClock*> simulated_{nullptr};
};

// Settings as durations of that clock. Longer times than some thirty years become that, and fit.

inline std::chrono::nanoseconds from_s(double s) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::min(s, 1.0e9)));
}

inline std::chrono::nanoseconds from_ms(double ms) {
  return from_s(ms / 1000.0);
}

}  // namespace ronde
