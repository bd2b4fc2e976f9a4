// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace ronde {

/// The clock of the engine: core reads the time by this name alone, so that it can be replaced
/// here.
using MonotonicClock = std::chrono::steady_clock;
using TimePoint = MonotonicClock::time_point;
using Duration = MonotonicClock::duration;

// Settings as durations of that clock. Longer times than some thirty years become that, and fit.

inline std::chrono::nanoseconds from_s(double s) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::min(s, 1.0e9)));
}

inline std::chrono::nanoseconds from_ms(double ms) {
  return from_s(ms / 1000.0);
}

}  // namespace ronde
