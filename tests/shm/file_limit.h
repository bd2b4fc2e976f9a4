// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <stdexcept>

namespace ronde::test {

/// What this process may put into a file, for a while.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    if (getrlimit(RLIMIT_FSIZE, &before_) != 0) throw std::runtime_error("getrlimit failed");
    const rlimit limit = {bytes, before_.rlim_max};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) throw std::runtime_error("setrlimit failed");
  }
  ~FileLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_ = {};
};

}  // namespace ronde::test
