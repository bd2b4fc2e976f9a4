// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "core/src/agree/messages.h"
#include "core/src/group/control_tree.h"
#include "ronde/log.h"

namespace ronde {

/// The reason why the group fails. Only the loop throws it, to end.
struct GroupFailure {
  FailureMessage failure;
  /// The failure is rank 0's resolution, or rank 0 cannot be reached.
  bool is_resolved = false;
};

/// Finds the rank that has failed, so that all ranks name the same one: rank 0 decides, and the
/// others ask it. The first rank to see a failed operation often sees the consequence of another
/// rank's death.
///
/// Thread-safety: none; used where the loop runs, and by a callback that leaves the group.
class FailureResolver {
 public:
  /// `pending`: what this rank was waiting for, for texts; may be empty. The references outlive
  /// this.
  FailureResolver(const ControlTree& tree, const Logger& log, std::string pending)
      : tree_(tree), log_(log), pending_(std::move(pending)) {}

  /// Returns the resolution for all ranks, after sending it to the children of this one. `leaves`:
  /// this rank does not wait for rank 0's answer.
  FailureMessage resolve_failure(const GroupFailure& seen, bool leaves) noexcept;

  FailureMessage loss_of(const Incoming& incoming) const;

 private:
  std::optional<FailureMessage> failure_in(const Incoming& incoming) const;
  FailureMessage resolve_as_rank_zero(FailureMessage seen);
  FailureMessage call_roll(FailureMessage seen);
  FailureMessage ask_rank_zero(const FailureMessage& seen);
  void answer_roll_call(FailureMessage failure) const;

  const ControlTree& tree_;
  const Logger& log_;
  const std::string pending_;
};

}  // namespace ronde
