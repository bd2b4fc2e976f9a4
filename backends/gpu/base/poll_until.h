// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <thread>

namespace ronde::cuda {

/// Polls `is_over()` until it is true or the deadline has passed; returns whether it is true.
template <typename IsOver>
bool poll_until(std::chrono::steady_clock::time_point deadline, const IsOver& is_over) {
  constexpr std::chrono::microseconds kPause{100};
  while (!is_over()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace ronde::cuda
