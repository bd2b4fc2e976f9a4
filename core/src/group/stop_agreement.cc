// SPDX-License-Identifier: Apache-2.0
#include "core/src/group/stop_agreement.h"

#include <algorithm>

#include "core/src/base/monotonic_clock.h"
#include "core/src/base/rank_list.h"

namespace ronde {
std::optional<ArbiterWatch::TimePoint> ArbiterWatch::answer_deadline(const Awaited& awaited) const {
  if (config_.stall_abort_s <= 0 || !awaited.decision) return std::nullopt;
  return *awaited.decision + from_s(config_.stall_abort_s) + tree_.depth() * kHeadStart;
}

/// Returns the time since which this rank has waited and nothing has come from above.
std::optional<ArbiterWatch::TimePoint> ArbiterWatch::silent_since(const Awaited& awaited) const {
  if (config_.stall_warn_s <= 0) return std::nullopt;
  const std::optional<TimePoint> since = awaited.decision ? awaited.decision : awaited.shutdown;
  return since ? std::optional(std::max(*since, last_message_)) : std::nullopt;
}

std::optional<ArbiterWatch::TimePoint> ArbiterWatch::silence_deadline(
    const Awaited& awaited) const {
  const auto since = silent_since(awaited);
  if (!since) return std::nullopt;
  const auto period = from_s(config_.stall_warn_s);
  return std::max(*since + period + tree_.depth() * kHeadStart, warned_ + period);
}

StalledOperation ArbiterWatch::warn(const Awaited& awaited, TimePoint now) {
  warned_ = now;
  StalledOperation stalled;
  stalled.text = "an answer of " + rank_name(tree_.parent());
  stalled.kind = Collective::Barrier;
  stalled.submitted_ranks = {tree_.rank()};
  stalled.missing_ranks = {tree_.parent()};
  stalled.waiting = std::chrono::duration_cast<std::chrono::milliseconds>(
      now - silent_since(awaited).value_or(now));
  return stalled;
}

}  // namespace ronde
