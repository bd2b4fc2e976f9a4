// SPDX-License-Identifier: Apache-2.0
#include "tools/prof/base/files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <system_error>
#include <utility>

#include "observe/base/replace_file.h"
#include "ronde/error.h"

namespace ronde::prof {

std::string read_file(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) throw UsageError(path.string() + " is a folder");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError(path.string() + " cannot be read: " + std::strerror(errno));
  return {std::istreambuf_iterator<char>(file), {}};
}

Json parse_json(const std::string& text, const fs::path& path) {
  if (text.empty()) throw UsageError(path.string() + " is empty");
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    const bool cut = error.byte > text.size();
    throw UsageError(path.string() + (cut ? " is cut at byte " : " is damaged at byte ") +
                     std::to_string(cut ? text.size() : error.byte) + ": this is no complete JSON");
  } catch (const Json::exception& error) {  // a number that no double holds
    throw UsageError(path.string() + " is damaged: " + error.what());
  }
}

void check_layout(const Json& layout, int known, const fs::path& path) {
  const int found = layout.is_number_integer() ? layout.get<int>() : 0;
  if (found == known) return;
  throw UsageError(
      path.string() + " has layout " + layout.dump() + ", and this ronde reads layout " +
      std::to_string(known) +
      (found > known ? ": use the version of ronde that wrote it, or a newer one" : ""));
}

int rank_in_name(const fs::path& path) {
  static const std::regex pattern("(?:^|.*\\.)rank(\\d{1,6})\\.json");
  std::smatch found;
  const std::string name = path.filename().string();
  return std::regex_match(name, found, pattern) ? std::stoi(found[1]) : -1;
}

std::vector<fs::path> json_files(const fs::path& folder, const std::string& what) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".json") found.push_back(entry->path());
  }
  if (error) throw UsageError("folder " + folder.string() + ": " + error.message());
  if (found.empty()) {
    throw UsageError("folder " + folder.string() + " has no *.json: " + what + " should be there");
  }
  std::ranges::sort(found, {}, [](const fs::path& path) {
    return std::pair(rank_in_name(path), path.filename().string());
  });
  return found;
}

void write_file(const fs::path& path, const std::function<void(std::ostream&)>& write) {
  const std::string why = replace_file(path, write);
  if (!why.empty()) throw UsageError(path.string() + " cannot be written: " + why);
}

}  // namespace ronde::prof
