// SPDX-License-Identifier: Apache-2.0
#include "training/step_table.h"

#include <cstdlib>

#include "common/data/files.h"
#include "common/errors.h"

namespace edsr {

std::ofstream open_step_table(const std::filesystem::path& path, const std::string& header,
                              std::int64_t last_step) {
  std::string head = header + "\n";
  std::ifstream before(path);
  std::string line;
  std::getline(before, line);
  while (last_step > 0 && std::getline(before, line)) {
    if (std::strtoll(line.c_str(), nullptr, 10) > last_step) break;
    head += line + "\n";
  }
  example::write_text(path, head);
  std::ofstream file(path, std::ios::app);
  if (!file) throw example::InputError("file " + path.string() + " cannot be opened for writing");
  return file;
}

}  // namespace edsr
