// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/stalls.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>

#include "core/src/base/rank_list.h"
#include "core/src/op/op_spec.h"

namespace ronde {
namespace {

using Milliseconds = std::chrono::milliseconds;

std::optional<Duration> limit(double seconds) {
  return seconds > 0.0 ? std::optional<Duration>(from_s(seconds)) : std::nullopt;
}

std::string seconds_text(Milliseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(duration.count()) / 1000.0);
  return text;
}

StalledOperation stalled_operation(const WaitingOperation& operation, TimePoint now) {
  return {operation.name,
          operation.text,
          operation.kind,
          ranges_of(operation.submitted_ranks),
          ranges_of(operation.missing_ranks),
          std::chrono::duration_cast<Milliseconds>(now - operation.since)};
}

/// Operations that wait for the same ranks.
struct Together {
  std::vector<std::string> names;
  Milliseconds longest{0};
};

}  // namespace

bool is_older(const WaitingOperation& a, const WaitingOperation& b) {
  return std::tie(a.since, a.text) < std::tie(b.since, b.text);
}

std::optional<FailureMessage> departure_of(const std::vector<WaitingOperation>& waiting,
                                           const std::vector<int>& not_shut_down) {
  for (const WaitingOperation& operation : waiting) {
    std::vector<int> gone;
    for (const int rank : operation.missing_ranks) {
      if (!std::ranges::binary_search(not_shut_down, rank)) {
        gone.push_back(rank);
      }
    }
    if (gone.empty() || (operation.needs_one && gone.size() < operation.missing_ranks.size()))
      continue;
    if (!operation.needs_one) gone.resize(1);
    const bool is_sent = is_point_to_point(operation.kind);
    return FailureMessage{
        gone.front(),
        format_ranks(gone) + " called shutdown() while " + format_ranks(operation.submitted_ranks) +
            " still waited for " + operation.text +
            (is_sent ? "; every send needs a recv, and every recv a send"
                     : "; every rank must submit the same operations (uneven data? see join())")};
  }
  return std::nullopt;
}

std::string timeout_text(const std::string& operation, const std::string& rank, Duration waited,
                         const std::string& lacking, const std::vector<int>& missing) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
  return operation + " timed out on " + rank + ": after " + std::to_string(ms) + " ms " + lacking +
         " had " + (lacking == "it" ? "not " : "") + "been submitted by " + format_ranks(missing) +
         "; raise its timeout or see what " +
         (missing.size() == 1 ? "that rank does" : "those ranks do") + " instead";
}

StallInspector::StallInspector(double warn_s, double abort_s)
    : warn_(limit(warn_s)), abort_(limit(abort_s)) {}

std::optional<Duration> StallInspector::period() const {
  if (!warn_ && !abort_) return std::nullopt;
  const Duration shorter =
      std::min(warn_.value_or(Duration::max()), abort_.value_or(Duration::max()));
  return std::clamp<Duration>(shorter / 8, Milliseconds(1), std::chrono::seconds(1));
}

StallInspector::Finding StallInspector::inspect(const std::vector<WaitingOperation>& waiting,
                                                TimePoint now) {
  Finding finding;
  const bool may_report = warn_ && now >= quiet_until_;
  for (const WaitingOperation& operation : waiting) {
    const Duration age = now - operation.since;
    if (abort_ && age >= *abort_ && !operation.may_last && !finding.fatal) {
      const StalledOperation stalled = stalled_operation(operation, now);
      finding.fatal = FailureMessage{
          operation.missing_ranks.at(0),
          stall_text({stalled}) + "; the limit is RONDE_STALL_ABORT_S=" +
              seconds_text(std::chrono::duration_cast<Milliseconds>(*abort_)) + ": see what " +
              format_ranks(operation.missing_ranks) + " did instead"};
    }
    if (may_report && age >= *warn_) finding.stalled.push_back(stalled_operation(operation, now));
  }
  if (!finding.stalled.empty()) quiet_until_ = now + *warn_;
  return finding;
}

std::string stall_text(const std::vector<StalledOperation>& stalled) {
  std::map<std::pair<RankRanges, RankRanges>, Together> groups;
  for (const StalledOperation& operation : stalled) {
    Together& group = groups[{operation.missing_ranks, operation.submitted_ranks}];
    group.names.push_back(operation.text);
    group.longest = std::max(group.longest, operation.waiting);
  }
  std::string text;
  for (const auto& [ranks, group] : groups) {
    if (!text.empty()) text += '\n';
    text += first_few(group.names) +
            (group.names.size() == 1 ? " has waited " : " have waited up to ") +
            seconds_text(group.longest) + " for " + format_ranges(ranks.first) + " (submitted by " +
            format_ranges(ranks.second) + ")";
  }
  return text;
}

}  // namespace ronde
