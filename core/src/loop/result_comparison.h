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

/// With RONDE_VERIFY, on rank 0: compares the results of a process set's ranks, in the order in
/// which the ranks agreed on the operations. It keeps those that some ranks have yet to end, which
/// are fewer than the operations in progress.
///
/// Thread-safety: none; owned by whoever runs the loop of rank 0.
class ResultComparison {
 public:
  /// `members`: the ranks of the group that are in the set.
  explicit ResultComparison(std::vector<int> members) : members_(std::move(members)) {}

  /// Takes in what a rank of the group has ended. The failure of the group if results differ, with
  /// a rank of the minority to blame, if there is one. Throws ronde::Error on what makes no sense.
  std::optional<FailureMessage> add(const ResultsMessage& message);

 private:
  struct Operation {
    ResultEnd first;                                    ///< of the rank that came first
    std::map<std::uint64_t, std::set<int>> ranks_with;  ///< by checksum
    std::set<int> ended;                                ///< ranks
  };

  static std::optional<FailureMessage> difference(const Operation& operation);

  const std::vector<int> members_;
  std::uint64_t next_ = 1;  ///< the number of the next one to compare
  std::map<std::uint64_t, Operation> operations_;
};

}  // namespace ronde
