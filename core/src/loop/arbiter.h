// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "core/src/agree/exchange_coordinator.h"
#include "core/src/agree/frozen_schedule.h"
#include "core/src/agree/messages.h"
#include "core/src/agree/schedule_learner.h"
#include "core/src/agree/stalls.h"
#include "core/src/group/control_tree.h"
#include "core/src/group/stop_agreement.h"
#include "core/src/loop/set_engines.h"
#include "core/src/tune/autotuner.h"
#include "ronde/log.h"
#include "ronde/runtime.h"

namespace ronde {

/// Rank 0's decisions over all process sets; finds the ranks that others wait for too long. Sends
/// nothing itself.
///
/// Thread-safety: none; owned by whoever runs the loop of rank 0. That of autotuner() is its own.
class Arbiter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// `schedule`: null if none is ever frozen. The references outlive this.
  Arbiter(const RuntimeOptions& options, const ControlTree& tree, const SetEngines& sets,
          const Logger& log, const FrozenSchedule* schedule);

  /// A rank asks for an exchange. Throws Error on a request that makes no sense.
  void add(const ExchangeRequest& request, TimePoint now) { exchanges_.add(request, now); }
  /// The exchanges that are over.
  std::vector<ExchangeReply> take_replies() { return exchanges_.take(); }

  /// Something may be decided on in that set; each such set is taken once.
  /// @{
  void mark_changed(std::uint32_t set);
  std::optional<std::uint32_t> pop_changed();
  /// @}

  /// Nothing but the global set stands in the way of the last decision.
  bool may_stop() const;
  /// Decides what the ranks of `set` agree on now, if anything. `may_stop`: it may be the last
  /// decision.
  std::optional<DecisionMessage> decide(SetEngine& set, bool may_stop, TimePoint now);
  /// Set when an exchange waits for a rank that has called shutdown and so will never come.
  std::optional<FailureMessage> departure() const;
  /// The schedule has been given up.
  void on_thaw(FrozenSchedule::Thaw reason, std::uint64_t rounds);

  /// Null if nothing is tuned. Constant after construction.
  Autotuner* autotuner() noexcept { return autotuner_ ? &*autotuner_ : nullptr; }
  const Autotuner* autotuner() const noexcept { return autotuner_ ? &*autotuner_ : nullptr; }
  /// Takes the steps that have ended. True: a frozen schedule has to thaw, for other settings.
  bool must_thaw_to_tune(TimePoint now);

  /// These ranks have finished; true if all have.
  bool mark_finished(const std::vector<std::int32_t>& ranks);

  /// The time when inspect() may find something, if it ever does.
  std::optional<TimePoint> next_inspection(const StopAgreement& stop) const;
  /// Finds operations that some ranks wait for and others do not submit.
  StallInspector::Finding inspect(const StopAgreement& stop, TimePoint now);
  /// Some rank has called shutdown().
  bool shutdown_has_begun() const;
  /// Throws GroupFailure: the shutdown has taken too long.
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
  StallInspector stalls_;
  TimePoint next_inspection_{};
  std::set<int> unfinished_;                 ///< ranks
  std::vector<std::uint32_t> changed_sets_;  ///< descending
};

}  // namespace ronde
