// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ronde {

/// Joins the timelines of the ranks of one host, FOLDER/rankN.json, in `path`. Throws Error if a
/// file is missing or cannot be read or written. `ronde prof merge` does more.
void merge_timeline_folder(const std::string& folder, int ranks, const std::string& path);

}  // namespace ronde
