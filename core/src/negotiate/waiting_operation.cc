// SPDX-License-Identifier: Apache-2.0
#include "core/src/negotiate/waiting_operation.h"

#include <algorithm>
#include <tuple>

#include "core/src/base/rank_list.h"

namespace ronde {

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

std::string timeout_text(const std::string& operation, const std::string& rank,
                         std::chrono::steady_clock::duration waited, const std::string& lacking,
                         const std::vector<int>& missing) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
  return operation + " timed out on " + rank + ": after " + std::to_string(ms) + " ms " + lacking +
         " had " + (lacking == "it" ? "not " : "") + "been submitted by " + format_ranks(missing) +
         "; raise its timeout or see what " +
         (missing.size() == 1 ? "that rank does" : "those ranks do") + " instead";
}

}  // namespace ronde
