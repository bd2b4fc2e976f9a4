// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace example {

/// Writes a file that appears under its name only when it is complete. Throws InputError.
void write_text(const std::filesystem::path& path, const std::string& text);

/// Writes rows of so many numbers, separated by commas: the shortest text of each that reads back
/// as the same number. Throws InputError.
void write_csv(const std::filesystem::path& path, std::span<const double> numbers,
               std::int64_t columns);

/// Creates the folder with its parents if need be, and proves by a probe file that it can be
/// written. Throws InputError with the system's reason and the `option` by which to choose another.
void prepare_folder(const std::filesystem::path& folder, const std::string& option);

/// Proves before a long run that `file` can be written at its end: prepares its folder, and throws
/// InputError where a folder has its name.
void prepare_file(const std::filesystem::path& file, const std::string& option);

/// Calls `compute` on every rank, and has rank 0 write its numbers to `file`, one a line, which is
/// proved to be possible first. An empty name: writes nothing.
void write_numbers(const std::filesystem::path& file, const std::string& option,
                   const std::function<std::vector<double>()>& compute);

}  // namespace example
