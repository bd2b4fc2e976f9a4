// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/src/base/json.h"
#include "ronde/figures.h"
#include "ronde/runtime.h"

namespace ronde {

/// The figures of a run, as the file of RONDE_PROFILE has them (docs/profiling.md).
struct Profile {
  struct OfRank {
    int rank = 0;
    Figures figures;
  };
  std::vector<OfRank> ranks;  ///< of which figures are known
  std::string failure;        ///< the group's; empty: the run is complete
};

nlohmann::ordered_json to_json(const Profile& profile, const Runtime& runtime);

/// What to print at the end of a run: the study's table, and what stands out.
std::string summary(const Profile& profile, const Runtime& runtime);

}  // namespace ronde
