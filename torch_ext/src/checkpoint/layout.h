// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ronde/process_set.h"

namespace ronde::detail {

/// Who writes what. Ranks are numbers within the process set.
struct CheckpointLayout {
  ProcessSet set = {};
  /// What the names of operations begin with.
  std::string subject = {};
  int rank = 0;
  int size = 1;
  bool sharded = true;
  bool replicated = false;
  std::vector<int> host_of = {0};  ///< by rank
  /// Ranks that do for their folder what is done once: of those that write into the same one, the
  /// lowest.
  bool commits = true;

  /// Who writes the part of `of`.
  int writer(int of) const { return sharded ? of : 0; }
  /// Who writes a copy of it: a rank on the next host. -1: nobody.
  int copier(int of) const;
  bool writes() const;
  /// Whether parts travel between ranks.
  bool exchanges() const { return size > 1 && (!sharded || replicated); }
};

/// The rank of each item that all ranks have: each rank gets about the same number of bytes. The
/// largest first, each to the rank that has least.
std::vector<int> divide_among_ranks(const std::vector<std::uint64_t>& bytes, int ranks);

}  // namespace ronde::detail
