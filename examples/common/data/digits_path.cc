// SPDX-License-Identifier: Apache-2.0
#include "common/data/digits_path.h"

#include <cstdlib>

namespace example {

std::filesystem::path digits_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') {
    return std::filesystem::path(cache) / "ronde" / "digits.csv.gz";
  }
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : "/") / ".cache" / "ronde" / "digits.csv.gz";
}

}  // namespace example
