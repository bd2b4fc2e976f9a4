// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "core/src/group/control_tree.h"
#include "core/src/negotiate/messages.h"
#include "ronde/log.h"

namespace ronde {

/// The group is dead, for this reason. Thrown by the loop alone, to leave it.
struct GroupFailure {
  FailureMessage failure;
  /// Rank 0 has spoken, or cannot be asked: the way to it is cut off.
  bool is_verdict = false;
};

/// Finds out which rank is to blame, so that all ranks name the same one: rank 0 decides, and the
/// others ask it. Whoever sees the failure of an operation first often sees what follows from the
/// death of another rank.
///
/// Thread-safety: none; used by the coordinator thread, and by a callback that leaves the group.
class FailureResolver {
 public:
  /// `pending`: what this rank was waiting for, for texts; or empty. The references outlive this.
  FailureResolver(const ControlTree& tree, const Logger& log, std::string pending)
      : tree_(tree), log_(log), pending_(std::move(pending)) {}

  /// Returns what all ranks are told; the children of this one have been told by then. `leaves`:
  /// this rank waits for no answer.
  FailureMessage settle(const GroupFailure& seen, bool leaves) noexcept;

  /// What to tell of a neighbour that is gone.
  FailureMessage loss_of(const Incoming& incoming) const;

 private:
  FailureMessage reach_verdict(const GroupFailure& seen, bool leaves);
  FailureMessage settle_as_arbiter(FailureMessage seen);
  FailureMessage ask_for_verdict(const FailureMessage& seen);

  const ControlTree& tree_;
  const Logger& log_;
  const std::string pending_;
};

}  // namespace ronde
