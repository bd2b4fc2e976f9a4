// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "ronde/plugin/events.h"

namespace ronde {

/// Estimates how far rank 0's clock is ahead of this rank's, on another host.
///
/// Note [Clocks of hosts]
/// A message of rank 0 carries the time at which it was sent. Rank 0 had received an earlier
/// message of this rank by then, and this rank receives the answer later: the difference of the
/// clocks lies between two bounds, as in the Network Time Protocol (Mills 1991), and each message
/// may narrow them. The fastest messages of a window count, as clocks drift. Messages that go
/// through other ranks, or wait for slow ones, only give wider bounds.
class ClockBounds {
 public:
  static constexpr std::int64_t kWindowNs = 5'000'000'000;

  /// Adds a message that rank 0 sent at `sent_ns` of its clock and that arrived at `now_ns`; rank 0
  /// had received one that this rank sent at `told_ns` (0: not known).
  void note(std::int64_t told_ns, std::int64_t sent_ns, std::int64_t now_ns) {
    if (current_.since_ns == 0 || now_ns - current_.since_ns > kWindowNs) {
      if (estimate(current_)) previous_ = current_;
      current_ = {.since_ns = now_ns};
    }
    current_.until_ns = now_ns;
    current_.lowest_ns = std::max(current_.lowest_ns, sent_ns - now_ns);
    if (told_ns > 0) current_.highest_ns = std::min(current_.highest_ns, sent_ns - told_ns);
    const bool is_in_first = first_.since_ns == 0 || first_.since_ns == current_.since_ns;
    if (is_in_first && estimate(current_)) first_ = current_;
  }

  /// The earliest and the latest offset that are known.
  std::optional<ClockOffset> first() const { return estimate(first_); }
  std::optional<ClockOffset> last() const {
    const auto latest = estimate(current_);
    return latest ? latest : estimate(previous_);
  }

 private:
  struct Window {
    std::int64_t since_ns = 0, until_ns = 0;
    std::int64_t lowest_ns = std::numeric_limits<std::int64_t>::min();
    std::int64_t highest_ns = std::numeric_limits<std::int64_t>::max();
  };

  static std::optional<ClockOffset> estimate(const Window& window) {
    const bool is_known = window.since_ns != 0 &&
                          window.lowest_ns != std::numeric_limits<std::int64_t>::min() &&
                          window.highest_ns != std::numeric_limits<std::int64_t>::max();
    if (!is_known) return std::nullopt;
    // Half of the differences, as the sum may not fit. A drift may have crossed the bounds.
    const std::int64_t width_ns = window.highest_ns - window.lowest_ns;
    return ClockOffset{.at_ns = window.since_ns + (window.until_ns - window.since_ns) / 2,
                       .ahead_ns = window.lowest_ns + width_ns / 2,
                       .uncertainty_ns = std::max<std::int64_t>(width_ns, -width_ns) / 2};
  }

  Window first_, current_, previous_;
};

}  // namespace ronde
