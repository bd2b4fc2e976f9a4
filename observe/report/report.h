// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/src/base/json.h"
#include "observe/report/profile.h"

namespace ronde {

/// A cause of lost time, with what to do.
struct Finding {
  std::string kind;    ///< for programs: "slow_rank"
  std::string text;    ///< what was measured, and what to change
  double cost_us = 0;  ///< estimate, for a rank and a step
  nlohmann::ordered_json figures = nlohmann::ordered_json::object();
};

/// Returns what stands out in the run: what ended it, then causes, most costly first, then time
/// that no cause explains. Empty for a healthy run.
std::vector<Finding> find_all(const Profile& run);

/// Returns what the figures of a run say: the most important finding in the first line, tables, all
/// findings. `fine`: a row for each power of two in the table by size.
std::string report_text(const Profile& run, bool fine = false);

/// The findings of the run for programs.
nlohmann::ordered_json report_json(const Profile& run);

}  // namespace ronde
