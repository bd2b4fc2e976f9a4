// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "core/src/agree/messages.h"
#include "core/src/group/control_tree.h"
#include "ronde/log.h"

namespace ronde {

/// The reason why the group is dead. Thrown by the loop alone, to leave it.
struct GroupFailure {
  FailureMessage failure;
  /// It is the resolution of rank 0, or rank 0 cannot be asked: the way to it is cut off.
  bool is_resolved = false;
};

/// Finds out which rank is to blame, so that all ranks name the same one: rank 0 decides, and the
/// others ask it. The first rank to see a failed operation often sees the consequence of another
/// rank's death.
///
/// Thread-safety: none; used where the loop runs, and by a callback that leaves the group.
class FailureResolver {
 public:
  /// `pending`: what this rank was waiting for, for texts; or empty. The references outlive this.
  FailureResolver(const ControlTree& tree, const Logger& log, std::string pending)
      : tree_(tree), log_(log), pending_(std::move(pending)) {}

  /// Returns the resolution for all ranks, which the children of this one have by then. `leaves`:
  /// this rank waits for no answer.
  FailureMessage resolve_failure(const GroupFailure& seen, bool leaves) noexcept;

  /// The failure of a neighbour that is lost.
  FailureMessage loss_of(const Incoming& incoming) const;

 private:
  FailureMessage resolve(const GroupFailure& seen, bool leaves);
  FailureMessage resolve_as_rank_zero(FailureMessage seen);
  FailureMessage call_roll(FailureMessage seen);
  FailureMessage ask_rank_zero(const FailureMessage& seen);
  void answer_roll_call(FailureMessage failure) const;

  const ControlTree& tree_;
  const Logger& log_;
  const std::string pending_;
};

}  // namespace ronde
