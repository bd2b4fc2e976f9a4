// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace ronde::test {

/// A fresh folder that is removed with all it holds.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// The content of a file, which must be there.
std::string read_text(const std::filesystem::path& path);

/// Makes or replaces a file.
void write_bytes(const std::filesystem::path& path, const std::string& bytes);

}  // namespace ronde::test
