// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/src/agree/messages.h"

namespace ronde {

/// Compares, with RONDE_VERIFY on rank 0, the results of a process set's ranks in the agreed order
/// of the operations. It keeps those that some ranks have yet to end, which are fewer than the
/// operations in progress.
///
/// Note [Verifying results]
/// A rank computes the checksum of a result before its program sees the result, and sends it before
/// it announces anything that the program submits then, requests the removal of the process set, or
/// reports that it has finished. So rank 0 finds a difference before the next decision about such
/// an operation, and before a shutdown ends; no rank waits for it. Rank 0 then fails the group: all
/// ranks of the set receive the failure by an operation that they wait for, or by shutdown().
///
/// Thread-safety: none; owned by whoever runs the loop of rank 0.
class ResultComparison {
 public:
  /// `members`: the ranks of the group that are in the set.
  explicit ResultComparison(std::vector<int> members) : members_(std::move(members)) {}

  /// Adds what a rank of the group has ended. Returns the failure of the group if results differ,
  /// which names a rank of the minority, if there is one. Throws ronde::Error on an invalid
  /// message.
  std::optional<FailureMessage> add(const ResultsMessage& message);

 private:
  struct Operation {
    ResultEnd first;                                    ///< from the rank that ended it first
    std::map<std::uint64_t, std::set<int>> ranks_with;  ///< by checksum
    std::set<int> ended;                                ///< ranks
  };

  static std::optional<FailureMessage> difference(const Operation& operation);

  const std::vector<int> members_;
  std::uint64_t next_ = 1;  ///< number of the next operation to compare
  std::map<std::uint64_t, Operation> operations_;
};

}  // namespace ronde
