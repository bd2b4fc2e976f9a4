// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace ronde {

// Settings as durations of the steady clock. Some thirty years stand for ever, and fit.

inline std::chrono::nanoseconds from_s(double s) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::min(s, 1.0e9)));
}

inline std::chrono::nanoseconds from_ms(double ms) {
  return from_s(ms / 1000.0);
}

}  // namespace ronde
