// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace ronde {

/// The clock of the engine: the one place in core that reads the time, with the time points of
/// std::chrono::steady_clock.
struct MonotonicClock {
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  static time_point now() noexcept { return std::chrono::steady_clock::now(); }
};

}  // namespace ronde
