// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ronde/tune_search.h"
#include "tools/tune/program.h"

namespace ronde::tool {

/// A variable and the values that are tried, the default among them, in an order in which
/// neighbours are alike.
struct TunedVariable {
  std::string name;
  std::vector<std::string> values;
};

/// Those that make sense for such a program, and that are not set in the environment.
std::vector<TunedVariable> tuned_variables(const RunReport& first);

/// The point of the defaults.
TuneSearch::Point defaults_of(const std::vector<TunedVariable>& variables);

std::map<std::string, std::string> values_at(const std::vector<TunedVariable>& variables,
                                             const TuneSearch::Point& point);

}  // namespace ronde::tool
