// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tools/prof/read/profile.h"

namespace ronde::prof {

/// Writes one page that needs no other file: findings, a step, messages by size, who waited for
/// whom, and the runs by their number of ranks where there are several.
void write_page(const std::vector<Run>& runs, const fs::path& file);

/// The page; its script finds the data in place of kDataMark.
extern const char* const kPageTemplate;

/// Stands once in the template.
inline constexpr const char* kDataMark = "\"DATA\"";

}  // namespace ronde::prof
