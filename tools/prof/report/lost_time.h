// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/prof/read/profile.h"

namespace ronde::prof {

/// What a rank lost in a step, on average, by waiting for ranks that were late; in the run where no
/// steps were counted.
struct LostTime {
  int rank = -1;
  double us = 0;
  double share = 0;                ///< of its step, or of the run
  std::map<int, double> for_rank;  ///< us by the late rank; -1: it is not known which of a host's
};

/// The time that each rank lost, the greatest first. A late rank's own wait after it has submitted
/// is time of negotiation; it is subtracted, as lateness does not cause it.
std::vector<LostTime> lost_times(const Run& run);

/// For whom it lost most: "rank 1", "ranks of one host", or "-" where it lost nothing.
std::string latest_for(const LostTime& lost);

}  // namespace ronde::prof
