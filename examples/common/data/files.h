// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace example {

/// A file that appears under its name only when it is complete and durable: written beside it,
/// fsynced and renamed by commit(). Destroyed without commit, it leaves nothing behind. Every
/// member throws InputError naming the file.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  [[noreturn]] void fail(const std::string& action) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

/// AtomicFile with `text`.
void write_text(const std::filesystem::path& path, const std::string& text);

/// AtomicFile with rows of so many numbers, separated by commas: the shortest text of each that
/// reads back as the same.
void write_csv(const std::filesystem::path& path, std::span<const double> numbers,
               std::int64_t columns);

/// Creates the folder with its parents if need be, and proves by a probe file that it can be
/// written. Throws InputError with the system's reason and the `option` by which to choose another.
void prepare_folder(const std::filesystem::path& folder, const std::string& option);

/// Proves before a long run that `file` can be written at its end: its folder as prepare_folder
/// does it, and that no folder has its name.
void prepare_file(const std::filesystem::path& file, const std::string& option);

}  // namespace example
