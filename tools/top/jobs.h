// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "observe/base/figures_json.h"

namespace ronde::tool::top {

/// The answer of a rank.
struct Answer {
  int pid = 0;
  nlohmann::ordered_json json;  ///< null if it sends nothing that is understood
};

/// Connects to every rank with a socket in `folder`, and waits about a second for their answers.
/// Removes sockets of processes that have ended. Throws Error if the folder belongs to somebody
/// else.
std::vector<Answer> ask_ranks(const std::string& folder);

/// Groups the answers of ranks by job, and computes rates between calls.
///
/// Thread-safety: none.
class Jobs {
 public:
  /// Returns an object for each job: its program, sums over the ranks of this host, and the ranks.
  /// Rates cover the most recent calls, and at the first one the time since init. `pid`:
  /// only the job with that process, or 0 for all.
  nlohmann::ordered_json take(const std::vector<Answer>& answers, int pid);

 private:
  /// Figures of a rank: now, and at the oldest of the recent calls (empty at the first one).
  using Recent = std::pair<Figures, Figures>;

  Recent recent_of(const nlohmann::ordered_json& rank);
  nlohmann::ordered_json job_of(const std::vector<nlohmann::ordered_json>& ranks);

  /// By pid, world and rank.
  std::map<std::tuple<int, std::string, int>, std::deque<Figures>> histories_;
};

/// Formats the result of Jobs::take() as text.
std::string text_of(const nlohmann::ordered_json& jobs);

}  // namespace ronde::tool::top
