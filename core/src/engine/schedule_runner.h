// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "core/src/engine/arbiter.h"
#include "core/src/group/control_tree.h"
#include "core/src/negotiate/messages.h"
#include "core/src/queue/submission_queue.h"
#include "core/src/schedule/frozen_schedule.h"
#include "core/src/sets/set_engine.h"
#include "ronde/config.h"
#include "ronde/log.h"
#include "ronde/plugin/board.h"

namespace ronde {

/// Lets the loop enter, follow and leave a frozen schedule of the global set: Note [Frozen
/// schedule].
///
/// Thread-safety: none; owned by whoever runs the loop. schedule() is constant once start() has
/// returned.
class ScheduleRunner {
 public:
  ScheduleRunner(SetEngine& global, SubmissionQueue& queue, const Logger& log)
      : global_(global), queue_(queue), log_(log) {}

  /// Makes the schedule, if there may be one.
  void start(const Config& config, const ControlTree& tree, Board& board);
  /// Null where the ranks share no memory, or if none is ever to be used.
  FrozenSchedule* schedule() const noexcept { return schedule_.get(); }

  /// Rank 0 has decided on it. Throws Error where there can be none.
  void freeze(const ScheduleMessage& message);
  /// Executes what all ranks have submitted of it, and takes back the rest after a thaw. `arbiter`:
  /// null on other ranks than rank 0.
  void follow(Arbiter* arbiter);

 private:
  SetEngine& global_;
  SubmissionQueue& queue_;
  const Logger& log_;
  std::unique_ptr<FrozenSchedule> schedule_;
};

}  // namespace ronde
