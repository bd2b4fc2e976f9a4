// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/src/negotiate/messages.h"

namespace ronde {

/// An operation that some ranks submitted and others did not. Ranks are those of the group,
/// ascending.
struct WaitingOperation : StalledOperation {
  std::chrono::steady_clock::time_point since;
  bool needs_one = false;  ///< of the missing ranks: a recv from any rank
  bool may_last = false;   ///< it is reported, but never fatal
};

/// Orders operations by when they began to wait.
bool is_older(const WaitingOperation& a, const WaitingOperation& b);

/// The failure of a group in which an operation waits for ranks that have called shutdown and so
/// will never come. `not_shut_down`: the others, ascending.
std::optional<FailureMessage> departure_of(const std::vector<WaitingOperation>& waiting,
                                           const std::vector<int>& not_shut_down);

/// The error of an operation whose timeout has passed on a rank: `lacking` ("it", "no recv that
/// fits") had not been submitted by `missing`.
std::string timeout_text(const std::string& operation, const std::string& rank,
                         std::chrono::steady_clock::duration waited, const std::string& lacking,
                         const std::vector<int>& missing);

}  // namespace ronde
