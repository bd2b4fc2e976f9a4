// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/src/execute/executor.h"
#include "core/src/negotiate/announcer.h"
#include "core/src/negotiate/combiner.h"
#include "core/src/negotiate/negotiator.h"
#include "core/src/sets/result_comparison.h"
#include "core/src/submit/set_info.h"

namespace ronde {

/// The backends that a thread has made for a set, with its description, to which they refer
/// (BackendContext).
struct MadeSet {
  std::shared_ptr<const SetInfo> info;
  Backends backends;
};

/// One process set in the engine of one rank. Sets negotiate and execute independently, so that a
/// set that waits never holds up those that share ranks with it.
///
/// Thread-safety: none; owned by whoever runs the loop.
struct SetEngine {
  explicit SetEngine(SetInfo info_of_set) : info(std::move(info_of_set)) {}

  SetInfo info;
  std::vector<int> children;  ///< in the tree, that are members or lead to some

  // Of members.
  std::shared_ptr<const SetInfo> made_for;  ///< what the backends refer to; null of the global set
  Backends backends;
  std::unique_ptr<Announcer> announcer;
  std::unique_ptr<Executor> executor;  ///< once the backends are made

  std::unique_ptr<Negotiator> negotiator;  ///< rank 0 of the group only, a member or not
  std::unique_ptr<Combiner> combiner;      ///< leaders with such children only, but for rank 0
  /// Beside the negotiator, with RONDE_VERIFY.
  std::unique_ptr<ResultComparison> results;

  bool is_global() const noexcept { return info.id == kGlobalSet.id; }
  bool busy() const noexcept { return executor && executor->busy(); }
};

}  // namespace ronde
