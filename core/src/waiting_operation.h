// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "request_meta.h"

namespace ronde {

/// An operation that some ranks submitted and others did not.
struct WaitingOperation {
  std::string key;
  Collective kind = Collective::Allreduce;
  std::vector<int> submitted;
  std::vector<int> missing;
  std::chrono::steady_clock::time_point since;
  std::string text = {};   ///< of a message, whose key tells nothing
  bool needs_one = false;  ///< of those that are missing: a recv from any rank
};

inline std::string display_name(const WaitingOperation& operation) {
  return operation.text.empty() ? display_name(operation.kind, operation.key) : operation.text;
}

}  // namespace ronde
