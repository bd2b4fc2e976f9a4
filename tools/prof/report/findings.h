// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/prof/read/profile.h"

namespace ronde::prof {

/// Something that costs time, in plain words, with what to do.
struct Finding {
  std::string kind;    ///< for programs: "slow_rank"
  std::string text;    ///< what was measured, and what to change
  double cost_us = 0;  ///< estimate, for a rank and a step
  Json figures = Json::object();
};

/// What stands out in the run: what ended it, then causes, most costly first, then time that no
/// cause explains. Empty for a healthy run.
std::vector<Finding> find_all(const Run& run);

}  // namespace ronde::prof
