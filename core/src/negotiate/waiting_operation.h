// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/src/negotiate/messages.h"
#include "core/src/submit/request_meta.h"

namespace ronde {

/// An operation that some ranks submitted and others did not. Ranks are those of the group,
/// ascending.
struct WaitingOperation {
  std::string name;  ///< empty if it has none
  std::string text;  ///< for people
  Collective kind = Collective::Allreduce;
  std::vector<int> submitted;
  std::vector<int> missing;
  std::chrono::steady_clock::time_point since;
  bool needs_one = false;  ///< of those that are missing: a recv from any rank
  bool may_last = false;   ///< it is reported, but never fatal
};

/// By when they began to wait.
bool is_older(const WaitingOperation& a, const WaitingOperation& b);

/// The failure that an operation waits for ranks which have called shutdown and so will never come.
/// `not_shut_down`: the others, ascending.
std::optional<FailureMessage> departure_of(const std::vector<WaitingOperation>& waiting,
                                           const std::vector<int>& not_shut_down);

}  // namespace ronde
