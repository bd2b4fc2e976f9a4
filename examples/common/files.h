// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace example {

/// Writes a file that appears under its name only when it is complete. Throws InputError.
void write_text(const std::filesystem::path& path, const std::string& text);

/// Creates the folder with its parents if need be, and proves by a probe file that it can be
/// written. Throws InputError with the system's reason and the `option` by which to choose another.
void prepare_folder(const std::filesystem::path& folder, const std::string& option);

/// Proves before a long run that `file` can be written at its end: prepares its folder, and throws
/// InputError where a folder has its name.
void prepare_file(const std::filesystem::path& file, const std::string& option);

/// Calls `compute` on every rank, and has rank 0 write its numbers to `file`, which is proved to be
/// possible first: so many in a line, separated by commas, in the shortest text that reads back as
/// the same number. An empty name: writes nothing. Throws InputError.
void write_numbers(const std::filesystem::path& file, const std::string& option, int columns,
                   const std::function<std::vector<double>()>& compute);

}  // namespace example
