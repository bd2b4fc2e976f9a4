// SPDX-License-Identifier: Apache-2.0
#include "api/observe/base/write_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "ronde/error.h"

namespace ronde {

void write_file(const std::string& path, const std::string& content) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // the file tells better
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  const std::string draft = path + ".part" + std::to_string(getpid());
  std::ofstream file(draft, std::ios::trunc);
  file << content;
  file.close();
  if (file && std::rename(draft.c_str(), path.c_str()) == 0) return;
  const std::string why = std::strerror(errno);
  std::remove(draft.c_str());
  throw Error(path + " cannot be written: " + why);
}

std::string to_text(const nlohmann::ordered_json& json) {
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace ronde
