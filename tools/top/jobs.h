// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "tools/top/ask.h"

namespace ronde::tool::top {

/// Jobs and what they do, from the answers of their ranks.
///
/// Thread-safety: none.
class Jobs {
 public:
  /// An object for each job: its program, sums over the ranks of this host, and the ranks. Rates
  /// are of the time of the most recent calls; at the first one, of the time since init. `pid`:
  /// only the job with that process, or 0 for all.
  nlohmann::ordered_json take(const std::vector<Answer>& answers, int pid);

 private:
  struct Numbers {
    double seconds = 0, steps = 0, samples = 0, bytes = 0, exposed_us = 0, step_us = 0;
    std::map<int, double> waited_us;  ///< for a rank that was last
  };

  static Numbers numbers_of(const nlohmann::ordered_json& figures);
  Numbers recent_of(const nlohmann::ordered_json& rank);
  nlohmann::ordered_json job_of(const std::vector<nlohmann::ordered_json>& ranks);

  /// By pid, world and rank.
  std::map<std::tuple<int, std::string, int>, std::deque<Numbers>> histories_;
};

/// For people.
std::string text_of(const nlohmann::ordered_json& jobs);

}  // namespace ronde::tool::top
