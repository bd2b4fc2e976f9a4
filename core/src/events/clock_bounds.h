// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "ronde/plugin/events.h"

namespace ronde {

/// How far rank 0's clock is ahead of this rank's, which is on another host.
///
/// Note [Clocks of hosts]
/// A message of rank 0 carries the time at which it was sent. By then rank 0 had what this rank had
/// told it before, and this rank gets it later: so the difference of the clocks lies between two
/// bounds, as in the Network Time Protocol (Mills 1991), and each message may narrow them. The
/// fastest messages of a window count, as clocks drift. Messages that go through other ranks, or
/// wait for slow ones, only give wider bounds.
///
/// Thread-safety: none.
class ClockBounds {
 public:
  static constexpr std::int64_t kWindowNs = 5'000'000'000;

  /// Rank 0 sent a message at `sent_ns` of its clock, which is here at `now_ns`; by then it had one
  /// that this rank sent at `told_ns` (0: not known).
  void note(std::int64_t told_ns, std::int64_t sent_ns, std::int64_t now_ns);

  /// The earliest and the latest that are known.
  std::optional<ClockOffset> first() const { return estimate(first_); }
  std::optional<ClockOffset> last() const;

 private:
  struct Window {
    std::int64_t since_ns = 0, until_ns = 0;
    std::int64_t lowest_ns = std::numeric_limits<std::int64_t>::min();
    std::int64_t highest_ns = std::numeric_limits<std::int64_t>::max();
  };

  static std::optional<ClockOffset> estimate(const Window& window);

  Window first_, current_, previous_;
};

}  // namespace ronde
