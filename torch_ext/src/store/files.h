// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/src/base/system.h"

// Files of a checkpoint. Errors are ronde::Error: what failed, the path, the system's words, and
// what to do.
namespace ronde::store {

/// "cannot write /x: No space left on device. Free ...", by errno.
[[noreturn]] void fail(const std::string& what, const std::filesystem::path& path, int code);

void make_folders(const std::filesystem::path& path);
UniqueFd open_folder(const std::filesystem::path& path);
/// Makes what was made and renamed in the folder durable.
void sync_folder(int folder, const std::filesystem::path& path);

/// Makes or replaces a file, which is durable afterwards; `folder` still has to be. `path` is for
/// errors.
void write_file(int folder, const std::string& name, std::string_view bytes,
                const std::filesystem::path& path);

std::string read_file(const std::filesystem::path& path);

}  // namespace ronde::store
