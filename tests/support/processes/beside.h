// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace ronde::test {

/// The full path of a file, of which the one from this program's folder is known.
inline const char* beside_program(const char* path) {
  static std::set<std::string> paths;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return paths.insert((folder / path).lexically_normal().string()).first->c_str();
}

}  // namespace ronde::test
