// SPDX-License-Identifier: Apache-2.0
#include "common/files.h"

#include <ronde/ronde.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <system_error>

#include "common/program.h"

namespace example {

namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  const fs::path temporary = path.string() + ".tmp." + std::to_string(::getpid());
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  std::error_code error(file ? 0 : errno, std::generic_category());
  if (file) fs::rename(temporary, path, error);
  if (file && !error) return;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  throw InputError("file " + path.string() + " cannot be written: " + error.message());
}

void prepare_folder(const fs::path& folder, const std::string& option) {
  std::error_code error;
  fs::create_directories(folder, error);
  // Permission bits do not show read-only mounts and full disks, and do not bind root: try.
  const fs::path probe = folder / (".probe." + std::to_string(::getpid()));
  if (!error && !std::ofstream(probe)) error = {errno, std::generic_category()};
  if (error) {
    throw InputError("folder " + folder.string() + " cannot be written: " + error.message() +
                     "; choose another by " + option);
  }
  fs::remove(probe, error);
}

void prepare_file(const fs::path& file, const std::string& option) {
  if (fs::is_directory(file)) {
    throw InputError(option + " " + file.string() + " is a folder; give the name of a file");
  }
  prepare_folder(file.has_parent_path() ? file.parent_path() : fs::path("."), option);
}

void write_numbers(const fs::path& file, const std::string& option, int columns,
                   const std::function<std::vector<double>()>& compute) {
  const bool writes = ronde::rank() == 0 && !file.empty();
  if (writes) prepare_file(file, option);
  const std::vector<double> numbers = compute();
  if (!writes) return;
  std::string text;
  std::array<char, 32> digits;
  int column = 0;
  for (const double number : numbers) {
    text.append(digits.data(), std::to_chars(digits.begin(), digits.end(), number).ptr);
    column = (column + 1) % columns;
    text += column == 0 ? '\n' : ',';
  }
  write_text(file, text);
}

}  // namespace example
