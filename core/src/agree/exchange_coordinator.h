// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/src/agree/late_refusals.h"
#include "core/src/agree/messages.h"
#include "core/src/agree/stalls.h"
#include "core/src/base/monotonic_clock.h"

namespace ronde {

/// Rank 0's side of exchanges: gathers the parts of all ranks and numbers new process sets. Pure
/// bookkeeping: no I/O, no clock of its own.
///
/// Thread-safety: none; owned by whoever runs the loop of rank 0.
class ExchangeCoordinator {
 public:
  /// `size`: of the group. `sets_before`: RuntimeOptions::sets_before.
  explicit ExchangeCoordinator(int size, std::uint32_t sets_before = 0)
      : size_(size), sets_(sets_before) {}

  /// Adds one rank's part. Throws ronde::Error if it is invalid.
  void add(const ExchangeRequest& request, TimePoint now);

  /// Removes and returns the replies to exchanges that have ended since the last call, in order.
  std::vector<ExchangeReply> take() { return std::exchange(replies_, {}); }

  /// Returns the exchanges that wait for ranks, oldest first. `for_calls_only`: only those that
  /// wait for a call of the program; a rank takes part in the others even after it has called
  /// shutdown.
  std::vector<WaitingOperation> waiting(bool for_calls_only = false) const;

  bool idle() const noexcept { return pending_.empty() && replies_.empty(); }
  /// Returns whether a set is being made, that is, not all ranks have reported the outcome.
  bool makes_sets() const noexcept { return !in_making_.empty(); }

 private:
  struct Pending {
    std::map<int, std::string> blobs;  ///< by rank
    TimePoint since;
  };

  bool refuse_unfinished(const ExchangeRequest& request);
  bool waits_for(const ExchangeKey& one, const ExchangeKey& other) const;
  void refuse_conflicts(const ExchangeKey& key);
  void complete(const ExchangeKey& key, std::vector<std::string> blobs);
  void refuse(const ExchangeKey& key, std::vector<int> to, std::string text);

  const int size_;
  std::uint32_t sets_;  ///< numbered so far
  std::set<std::uint32_t> in_making_;
  std::map<ExchangeKey, Pending> pending_;
  LateRefusals latecomers_;  ///< ranks that are late for a refused exchange, by text_of(key)
  /// Sets that a rank could not make, and why; until all ranks have reported.
  std::map<std::uint32_t, std::string> unfinished_;
  std::vector<ExchangeReply> replies_;
};

/// Returns whether a call of the program starts such an exchange; others follow from calls.
bool is_call(ExchangeKind kind);

/// Returns, for texts, "the process set of ranks 0,2" or "process set 3".
std::string subject_of(const ExchangeKey& key);

}  // namespace ronde
