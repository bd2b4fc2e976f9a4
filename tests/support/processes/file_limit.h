// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>

namespace ronde::test {

/// A limit of this process, for a while.
class ResourceLimit {
 public:
  ResourceLimit(__rlimit_resource resource, rlim_t most) : resource_(resource) {
    if (getrlimit(resource, &before_) != 0) throw std::runtime_error("getrlimit failed");
    const rlimit limit = {most, before_.rlim_max};
    if (setrlimit(resource, &limit) != 0) throw std::runtime_error("setrlimit failed");
  }
  ~ResourceLimit() { setrlimit(resource_, &before_); }
  ResourceLimit(const ResourceLimit&) = delete;
  ResourceLimit& operator=(const ResourceLimit&) = delete;

 private:
  const __rlimit_resource resource_;
  rlimit before_ = {};
};

/// What this process may put into a file.
class FileLimit : public ResourceLimit {
 public:
  explicit FileLimit(rlim_t bytes) : ResourceLimit(RLIMIT_FSIZE, bytes) {}
};

/// What this process may map beyond what it has.
class MemoryLimit : public ResourceLimit {
 public:
  explicit MemoryLimit(rlim_t more) : ResourceLimit(RLIMIT_AS, mapped() + more) {}

 private:
  static rlim_t mapped() {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
  }
};

}  // namespace ronde::test
