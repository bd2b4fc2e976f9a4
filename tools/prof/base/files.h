// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "observe/base/figures_json.h"

namespace ronde::prof {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The content of a file. A UsageError names the file if it cannot be read.
std::string read_file(const fs::path& path);

/// The JSON in `text`, which is that of `path`. A UsageError names the file and the byte where it
/// is damaged.
Json parse_json(const std::string& text, const fs::path& path);

/// Throws a UsageError if `layout` of the file is not what this program reads.
void check_layout(const Json& layout, int known, const fs::path& path);

/// The rank in a name that ends in "rank<r>.json", or -1.
int rank_in_name(const fs::path& path);

/// The files of `folder` whose names end in ".json", by rank, then by name. A UsageError if the
/// folder is not there, is none, or holds no such file; `what` is what it should hold.
std::vector<fs::path> json_files(const fs::path& folder, const std::string& what);

/// Replaces the file by what `write` writes; nobody sees a part of it. A UsageError if it cannot be
/// written.
void write_file(const fs::path& path, const std::function<void(std::ostream&)>& write);

}  // namespace ronde::prof
