// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "ronde/backend.h"
#include "tests/support/fakes/memory_hosts.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {

/// For ranks that are threads as if on several hosts: a backend of the CPU that reduces as the
/// hierarchical one does, with its bits, and without MPI.
class HostsBackends {
 public:
  explicit HostsBackends(std::vector<int> host_of);

  /// The group of these ranks.
  const inproc::Group& group() const noexcept { return group_; }
  int size() const noexcept { return static_cast<int>(host_of_.size()); }

  /// For each rank; outlived by this.
  BackendFactory factory();

 private:
  const std::vector<int> host_of_;
  const inproc::Group group_;
  MemoryHosts memory_;
};

}  // namespace ronde::test
