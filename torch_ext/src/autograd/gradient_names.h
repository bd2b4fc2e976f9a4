// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "ronde/process_set.h"

namespace ronde::detail {

// Note [Names in backward]
//
// Ranks match operations by name. What backward runs for a collective is named after it, with its
// number among the recorded uses of the same operation since backward last reached one. So several
// uses in one graph have names of their own, and each step has those of the step before, which hit
// the response cache. The numbers follow from what the program does, not from when a graph is
// freed, and so are the same on ranks that do the same. An operation without a name counts as one
// of the name "" here: its gradient must not take part in matching by order, as backward may run
// on another thread.

/// Thread-safe.
class GradientNames {
 public:
  /// For a recorded use of `operation` ("allreduce 'x'") in `set`.
  std::string next(ProcessSet set, const std::string& operation);

  /// Backward has reached a use of it.
  void restart(ProcessSet set, const std::string& operation);

 private:
  std::mutex mutex_;
  // Guarded by mutex_: by set and operation, those not restarted since. A set's number is no part
  // of a name: each rank may have numbered it in its own way.
  std::map<std::pair<std::uint32_t, std::string>, std::uint64_t> uses_;
};

/// Of this process.
GradientNames& gradient_names();

}  // namespace ronde::detail
