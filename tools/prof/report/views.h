// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <vector>

#include "tools/prof/read/trace.h"

namespace ronde::prof {

/// Prints the first run beside each other one. `fine`: as in report_text().
void print_comparison(const std::vector<Profile>& runs, bool fine, std::ostream& out);

/// Writes one page that needs no other file: findings, a step, messages by size, who waited for
/// whom, and the runs by their number of ranks where there are several.
void write_page(const std::vector<Profile>& runs, const fs::path& file);

/// The page; its script finds the data in place of kDataMark, which stands once in it.
extern const char* const kPageTemplate;
inline constexpr const char* kDataMark = "\"DATA\"";

}  // namespace ronde::prof
