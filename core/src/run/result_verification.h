// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/src/agree/messages.h"
#include "core/src/events/event_log.h"
#include "core/src/run/backend_calls.h"
#include "ronde/log.h"

namespace ronde {

/// With RONDE_VERIFY: the checksums of this rank's results, for rank 0, which compares them
/// (ResultComparison). Results are in host memory and the same on all ranks: those of allreduces,
/// broadcasts and allgathers.
class ResultChecksums {
 public:
  /// The references outlive this.
  ResultChecksums(const Results& results, const EventLog& events, const Logger& log)
      : results_(results), events_(events), log_(log) {}

  /// Numbers the operations that have such results, in the agreed order: alike on all ranks.
  void number(std::vector<Submission>& agreed);

  /// Adds the checksum of an operation that has ended or failed, before the program sees the end.
  void add(const Submission& item, bool failed);

  bool empty() const noexcept { return ends_.empty(); }
  std::vector<ResultEnd> take() { return std::exchange(ends_, {}); }

 private:
  const Results& results_;
  const EventLog& events_;
  const Logger& log_;
  std::uint64_t numbers_ = 0;
  bool warned_of_devices_ = false;
  std::vector<ResultEnd> ends_;
};

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
