// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

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
  /// For a recorded use of `operation` ("allreduce 'x'").
  std::string next(const std::string& operation);

  /// Backward has reached a use of it.
  void restart(const std::string& operation);

 private:
  std::mutex mutex_;
  std::map<std::string, std::uint64_t> uses_;  // guarded by mutex_; those not restarted since
};

/// Of this process.
GradientNames& gradient_names();

}  // namespace ronde::detail
