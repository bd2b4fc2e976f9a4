// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "tools/prof/read/profile.h"

namespace ronde::prof {

/// Prints what a run says: the most important finding in the first line, tables, all findings.
/// `fine`: every size class by itself.
void print_report(const Run& run, bool fine, std::ostream& out);

/// The findings of the run for programs.
Json report_json(const Run& run);

/// Prints the first run beside each other one.
void print_comparison(const std::vector<Run>& runs, bool fine, std::ostream& out);

}  // namespace ronde::prof
