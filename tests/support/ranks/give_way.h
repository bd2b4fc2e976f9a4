// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <thread>

namespace ronde::test {

/// Lets another thread run, from a loop that polls. Linux runs a thread that has yielded after
/// all others, but one that has slept soon: where others compute, ranks that yield to each other
/// thousands of times take minutes.
inline void give_way() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongYield{1}, kCrowdedTime{100};
  constexpr std::chrono::microseconds kPause{50};
  thread_local Clock::time_point crowded_until{};
  const Clock::time_point before = Clock::now();
  if (before < crowded_until) return std::this_thread::sleep_for(kPause);
  std::this_thread::yield();
  const Clock::time_point after = Clock::now();
  if (after - before > kLongYield) crowded_until = after + kCrowdedTime;
}

}  // namespace ronde::test
