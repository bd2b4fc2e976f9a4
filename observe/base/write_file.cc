// SPDX-License-Identifier: Apache-2.0
#include "observe/base/write_file.h"

#include <filesystem>
#include <system_error>

#include "observe/base/replace_file.h"
#include "ronde/error.h"

namespace ronde {

void write_file(const std::string& path, const std::string& content) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // the file's error says more
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  const std::string why = replace_file(path, [&](std::ostream& file) { file << content; });
  if (!why.empty()) throw Error(path + " cannot be written: " + why);
}

std::string to_text(const nlohmann::ordered_json& json) {
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace ronde
