// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tools/prof/base/files.h"
#include "tools/prof/read/figures.h"

namespace ronde::prof {

/// What is known about one run.
struct Run {
  std::string source;  ///< the file or folder
  std::string version;
  int ranks = 1;
  int hosts = 1;
  std::string failure;  ///< what ended it, if it failed
  std::vector<int> missing_ranks;
  std::vector<std::string> remarks;  ///< what is missing from the files, a sentence each
  std::map<std::string, std::string> config;
  std::map<std::string, std::string> backends;
  Figures merged;
  std::vector<Figures> per_rank;

  /// How many ranks' counts are in `merged`: at least 1.
  double measured_ranks() const {
    return per_rank.empty() ? 1 : static_cast<double>(per_rank.size());
  }
  /// A count or a time of all ranks as that of one rank in one step; of the whole run where steps
  /// were not counted.
  double a_step(double sum) const { return sum / measured_ranks() / std::max(1.0, merged.steps); }

  /// RONDE_FUSION_BYTES in bytes, or -1 where it is not known.
  double fusion_bytes() const;
};

/// The runs in a profile, in the files FILE.rank<r>.json that the ranks of a failed run left, in a
/// folder of such files, or in the folder of a timeline. A UsageError says what cannot be read.
std::vector<Run> read_runs(const fs::path& path);

/// As read_runs, where there must be one.
Run read_run(const fs::path& path);

}  // namespace ronde::prof
