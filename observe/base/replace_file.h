// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>

#include "core/src/base/system.h"

namespace ronde {

/// Replaces the file at once by what `write(stream)` writes: a reader sees the old content or the
/// new one. Returns why it cannot be written, or an empty text.
template <typename Write>
[[nodiscard]] std::string replace_file(const std::string& path, const Write& write) {
  const struct Draft {
    std::string path;
    ~Draft() { std::remove(path.c_str()); }  // once it is renamed, there is none
  } draft{path + ".part" + std::to_string(getpid())};
  errno = 0;
  std::ofstream file(draft.path, std::ios::binary);
  if (file) write(file);
  file.close();
  if (file && std::rename(draft.path.c_str(), path.c_str()) == 0) return {};
  return errno_text(errno != 0 ? errno : EIO);
}

}  // namespace ronde
