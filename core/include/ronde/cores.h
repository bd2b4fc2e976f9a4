// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <limits>
#include <string>

namespace ronde {

/// The cores that processes of one host can use.
struct Cores {
  std::string mask;  ///< one bit each, eight to a byte, as in an affinity mask
  /// The number of cores that the processes' quota of CPU time keeps busy.
  int quota = std::numeric_limits<int>::max();

  /// Returns the number of usable cores, at least 1.
  int count() const noexcept;
  /// Adds the cores of another process, which shares the quota.
  void add(const Cores& other);
};

/// Returns the cores of the calling thread: its affinity mask, and the quota of its control groups.
/// Throws ronde::Error if the kernel does not give the mask.
Cores usable_cores();

/// Returns the least quota, in whole cores, of this process's control group and of the groups
/// around it, of version 1 and of version 2; the largest int if there is none. `root` is the root
/// folder.
int cpu_quota(const std::filesystem::path& root);

}  // namespace ronde
