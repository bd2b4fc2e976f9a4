// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "core/src/agree/exchange_coordinator.h"
#include "core/src/agree/frozen_schedule.h"
#include "core/src/agree/messages.h"
#include "core/src/agree/schedule_learner.h"
#include "core/src/agree/stalls.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/group/control_tree.h"
#include "core/src/group/engine_life.h"
#include "core/src/loop/set_engines.h"
#include "core/src/tune/autotuner.h"
#include "ronde/config.h"
#include "ronde/log.h"
#include "ronde/runtime.h"

namespace ronde {

/// Makes rank 0's decisions over all process sets, and finds ranks that others wait for too long.
/// Sends nothing itself.
///
/// Thread-safety: none; owned by whoever runs the loop of rank 0. See Autotuner for autotuner().
class Arbiter {
 public:
  /// `schedule`: null if none is ever frozen. The references outlive this.
  Arbiter(const RuntimeOptions& options, const ControlTree& tree, const SetEngines& sets,
          const Logger& log, const FrozenSchedule* schedule, const StallLimit& stall_limit);

  /// Adds a rank's part of an exchange, for which the last decision of all may wait.
  void add(const ExchangeRequest& request, TimePoint now);
  /// As ExchangeCoordinator::take().
  std::vector<ExchangeReply> take_replies() { return exchanges_.take(); }

  /// The sets in which a decision may be due.
  std::set<std::uint32_t>& changed_sets() noexcept { return changed_sets_; }

  /// Returns whether nothing outside the global set prevents the last decision.
  bool may_stop() const;
  /// Returns what the ranks of `set` agree on now, if anything. `may_stop`: it may be the last
  /// decision.
  std::optional<DecisionMessage> decide(SetEngine& set, bool may_stop, TimePoint now);
  /// Returns a failure when an exchange waits for a rank that has called shutdown, and so will
  /// never take part.
  std::optional<FailureMessage> departure() const;
  void on_thaw(FrozenSchedule::Thaw reason, std::uint64_t rounds);

  /// Null if nothing is tuned. Constant after construction.
  Autotuner* autotuner() noexcept { return autotuner_ ? &*autotuner_ : nullptr; }
  const Autotuner* autotuner() const noexcept { return autotuner_ ? &*autotuner_ : nullptr; }
  /// Hands the steps that have ended to the autotuner. Returns whether a frozen schedule has to
  /// thaw for other settings.
  bool must_thaw_to_tune(TimePoint now);

  /// Returns the time at which inspect() may find something, if any.
  std::optional<TimePoint> next_inspection(const StopAgreement& stop) const;
  /// Finds operations that some ranks wait for and others do not submit.
  StallInspector::Finding inspect(const StopAgreement& stop, TimePoint now);
  /// Throws GroupFailure, as the shutdown has taken too long, unless no rank is late.
  void blame_for_shutdown(const StopAgreement& stop) const;

 private:
  bool tune(DecisionMessage& decision);
  void learn(DecisionMessage& decision, TimePoint now);
  std::vector<int> missing_in_shutdown(const StopAgreement& stop) const;
  bool awaits_anything(const StopAgreement& stop) const;
  std::vector<WaitingOperation> waiting(const StopAgreement& stop) const;
  std::optional<WaitingOperation> waiting_shutdown(const StopAgreement& stop) const;

  const ControlTree& tree_;
  const SetEngines& sets_;
  const Logger& log_;
  const FrozenSchedule* const schedule_;
  std::optional<ScheduleLearner> learner_;
  std::optional<Autotuner> autotuner_;
  ExchangeCoordinator exchanges_;
  const StallLimit& stall_limit_;
  StallInspector stalls_;
  TimePoint next_inspection_{};
  std::set<std::uint32_t> changed_sets_;
};

}  // namespace ronde
