// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "core/src/base/monotonic_clock.h"
#include "core/src/op/submission.h"
#include "core/src/op/work_state.h"

namespace ronde {

/// A way in which the ranks agree on what they run next, as threads that submit and wait see it:
/// Negotiated, or a FrozenSchedule. The mutex of the SubmissionQueue guards it, so that what is
/// submitted has one order for both.
class Agreement {
 public:
  virtual ~Agreement() = default;

  enum class Intake {
    Deviates,  ///< it does not belong here: the other agreement has it
    Taken,
    Due  ///< taken, and the loop must run
  };
  /// Takes the submission over, unless it Deviates. The mutex is held.
  virtual Intake put(Submission& submission) = 0;

  /// Ends the delay of `work`: a thread waits for it (`waits`), or asks whether it is done. Returns
  /// whether the loop must run. The mutex is held.
  virtual bool expedite(const WorkState& work, bool waits) = 0;

  /// Returns when the loop must run: a past time if at once, nullopt if there is nothing. The mutex
  /// is held.
  virtual std::optional<TimePoint> due() const = 0;
};

}  // namespace ronde
