// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <thread>

namespace ronde::cuda {

/// Looks again and again whether `is_over()`, for no longer than until `deadline`, and returns
/// whether it is. For what tells nobody, as a GPU that is to come to rest.
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
