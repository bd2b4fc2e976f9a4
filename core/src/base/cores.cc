// SPDX-License-Identifier: Apache-2.0
#include "ronde/cores.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>

#include "ronde/error.h"

namespace ronde {
namespace {

namespace fs = std::filesystem;

constexpr int kNoQuota = std::numeric_limits<int>::max();

/// Returns whether a list such as "cpu,cpuacct" has the controller of CPU time.
bool has_cpu(const std::string& list) {
  return ("," + list + ",").find(",cpu,") != std::string::npos;
}

/// Returns the path of this process's group; empty if /proc/self/cgroup has no such hierarchy.
fs::path own_group(const fs::path& root, bool is_v2) {
  std::ifstream file(root / "proc/self/cgroup");
  std::string number;
  std::string controllers;
  std::string path;
  while (std::getline(file, number, ':') && std::getline(file, controllers, ':') &&
         std::getline(file, path)) {
    if (is_v2 ? number == "0" && controllers.empty() : has_cpu(controllers)) return path;
  }
  return {};
}

/// Returns the quota of the group in this folder alone.
int quota_of(const fs::path& group) {
  long long quota = 0;
  long long period = 0;
  if (std::ifstream v2(group / "cpu.max"); v2) {
    v2 >> quota >> period;  // "max" is no number
  } else {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota;  // -1: none
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return kNoQuota;
  return static_cast<int>(std::clamp<long long>(quota / period, 1, kNoQuota));
}

}  // namespace

int Cores::count() const noexcept {
  int bits = 0;
  for (const char byte : mask) bits += std::popcount(static_cast<unsigned char>(byte));
  return std::max(1, std::min(bits, quota));
}

void Cores::add(const Cores& other) {
  mask.resize(std::max(mask.size(), other.mask.size()));
  for (std::size_t i = 0; i < other.mask.size(); ++i) {
    mask[i] = static_cast<char>(mask[i] | other.mask[i]);
  }
  quota = std::min(quota, other.quota);
}

Cores usable_cores() {
  std::array<cpu_set_t, 8> mask{};  // more than any kernel is built for
  if (::sched_getaffinity(0, sizeof mask, mask.data()) != 0) {
    throw Error("cannot read the affinity mask: " + std::generic_category().message(errno));
  }
  std::string bytes(reinterpret_cast<const char*>(mask.data()), sizeof mask);
  bytes.resize(bytes.find_last_not_of('\0') + 1);
  return {.mask = std::move(bytes), .quota = cpu_quota("/")};
}

int cpu_quota(const fs::path& root) {
  int quota = kNoQuota;
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    // "31 30 0:26 /root /mounted/at rw - cgroup cgroup rw,cpu"
    std::istringstream fields(line);
    std::string skipped;
    fs::path mounted;
    fs::path at;
    fields >> skipped >> skipped >> skipped >> mounted >> at;
    while (fields >> skipped && skipped != "-") {
    }
    std::string type;
    std::string options;
    fields >> type >> skipped >> options;
    if (type != "cgroup2" && (type != "cgroup" || !has_cpu(options))) continue;
    // A container may see only a part of the tree, but its group's path from outside.
    fs::path below = own_group(root, type == "cgroup2").lexically_relative(mounted);
    if (below.empty() || *below.begin() == ".." || below == ".") below.clear();
    const fs::path top = root / at.relative_path();
    for (;; below = below.parent_path()) {
      quota = std::min(quota, quota_of(top / below));
      if (below.empty()) break;
    }
  }
  return quota;
}

}  // namespace ronde
