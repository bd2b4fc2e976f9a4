// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace edsr {

/// A CSV file to add to, each of whose lines begins with a step. Keeps of an existing file those up
/// to `last_step` (0: none), which a resumed run has behind it. Throws InputError when it cannot be
/// written.
std::ofstream open_step_table(const std::filesystem::path& path, const std::string& header,
                              std::int64_t last_step);

}  // namespace edsr
