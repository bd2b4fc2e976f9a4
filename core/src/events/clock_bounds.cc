// SPDX-License-Identifier: Apache-2.0
#include "core/src/events/clock_bounds.h"

#include <algorithm>

namespace ronde {

void ClockBounds::note(std::int64_t told_ns, std::int64_t sent_ns, std::int64_t now_ns) {
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

std::optional<ClockOffset> ClockBounds::last() const {
  const auto latest = estimate(current_);
  return latest ? latest : estimate(previous_);
}

std::optional<ClockOffset> ClockBounds::estimate(const Window& window) {
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

}  // namespace ronde
