// SPDX-License-Identifier: Apache-2.0
#include "core/src/loop/arbiter.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/src/base/rank_list.h"
#include "core/src/group/failure_resolver.h"
#include "ronde/error.h"

namespace ronde {

Arbiter::Arbiter(const RuntimeOptions& options, const ControlTree& tree, const SetEngines& sets,
                 const Logger& log, const FrozenSchedule* schedule, const StallLimit& stall_limit)
    : tree_(tree),
      sets_(sets),
      log_(log),
      schedule_(schedule),
      exchanges_(tree.size(), options.sets_before),
      stall_limit_(stall_limit),
      stalls_(options.config.stall_warn_s, options.config.stall_abort_s) {
  const Config& config = options.config;
  if (config.autotune || !config.tuned.empty()) {
    autotuner_.emplace(options, tree.topology(), log, schedule != nullptr);
  }
  if (schedule == nullptr) return;
  learner_.emplace(config.freeze_after_steps, config.fusion_bytes, schedule->most_buckets());
}

bool Arbiter::may_stop() const {
  const bool are_exchanges_done = exchanges_.idle() && !exchanges_.makes_sets();
  return are_exchanges_done && sets_.global().negotiator->all_shut_down() &&
         std::ranges::all_of(sets_.all(), [](const auto& entry) {
           const SetEngine& set = *entry.second;
           const bool has_ended = set.negotiator->idle() && set.negotiator->all_shut_down();
           return set.is_global() || has_ended;
         });
}

std::optional<DecisionMessage> Arbiter::decide(SetEngine& set, bool may_stop, TimePoint now) {
  std::optional<DecisionMessage> decision = set.negotiator->decide(may_stop);
  if (!decision) return decision;
  decision->set = set.info.id;
  decision->sent_ns = EventLog::now_ns();
  if (const auto warning = set.negotiator->take_warning()) log_.warning(*warning);
  if (set.is_global() && !tune(*decision)) learn(*decision, now);
  return decision;
}

bool Arbiter::must_thaw_to_tune(TimePoint now) {
  if (!autotuner_ || !autotuner_->active()) return false;
  std::uint64_t bytes = 0;
  for (const SetEngine* const set : sets_.running()) bytes += set->executor->counters().bytes.get();
  const bool frozen = schedule_ != nullptr && schedule_->is_frozen();
  autotuner_->process_steps(frozen, bytes, now);
  return frozen && autotuner_->wanted();
}

/// Adds new settings to the decision if the autotuner has some; returns whether it did.
bool Arbiter::tune(DecisionMessage& decision) {
  if (!autotuner_ || !autotuner_->active()) return false;
  autotuner_->observe(decision, *sets_.global().announcer);
  decision.tuning = autotuner_->wanted();
  if (!decision.tuning) return false;
  autotuner_->on_applied();
  if (learner_) {
    learner_->restart(decision.tuning->freeze_after_steps, decision.tuning->fusion_bytes);
  }
  return true;
}

/// Adds a schedule to the decision if the learner has found one.
void Arbiter::learn(DecisionMessage& decision, TimePoint now) {
  if (!learner_) return;
  const SetEngine& global = sets_.global();
  std::vector<ScheduleLearner::Operation> operations;
  bool fits = true;
  const auto add = [&](std::uint32_t slot, bool contributed) {
    const CachedResponse& response = global.announcer->response(slot);
    const bool is_group = response.spec->is_group();
    fits = fits && (is_group || response.spec->kind != Collective::Barrier);
    const bool moves_data = contributed && !is_group;  // a group has a bucket of its own
    const std::uint64_t bytes = moves_data ? global.executor->wire_bytes(*response.spec) : 0;
    operations.push_back({slot, !response.spec->name.empty(), contributed, {response.spec, bytes}});
  };
  decision.cached.for_each(
      [&](std::size_t bit) { add(static_cast<std::uint32_t>(bit), !decision.skipped.test(bit)); });
  for (const KeyedSlot& item : decision.keyed) add(item.slot, item.contributes);
  for (const Response& response : decision.responses) fits = fits && !response.error.empty();
  const bool after_wait = global.negotiator->take_after_wait();
  if (!fits) {
    learner_->forget();
    return;
  }
  auto schedule = learner_->observe(operations, after_wait, now);
  if (!schedule || !global.negotiator->may_freeze()) return;
  decision.schedule = std::move(*schedule);
  global.negotiator->freeze();
}

void Arbiter::on_thaw(FrozenSchedule::Thaw reason, std::uint64_t rounds) {
  if (!learner_) return;
  if (reason == FrozenSchedule::Thaw::Tuning) return learner_->forget();
  learner_->on_thaw(reason == FrozenSchedule::Thaw::Wait, rounds);
}

void Arbiter::add(const ExchangeRequest& request, TimePoint now) {
  exchanges_.add(request, now);
  changed_sets_.insert(kGlobalSet.id);
}

std::optional<FailureMessage> Arbiter::departure() const {
  const Negotiator& global = *sets_.global().negotiator;
  if (exchanges_.idle() || !global.any_shut_down()) return std::nullopt;
  return departure_of(exchanges_.waiting(/*for_calls_only=*/true), global.not_shut_down());
}

std::optional<TimePoint> Arbiter::next_inspection(const StopAgreement& stop) const {
  const bool is_needed = awaits_anything(stop) && stalls_.period();
  return is_needed ? std::optional(next_inspection_) : std::nullopt;
}

StallInspector::Finding Arbiter::inspect(const StopAgreement& stop, TimePoint now) {
  if (now < next_inspection_ || !next_inspection(stop)) return {};
  next_inspection_ = now + *stalls_.period();
  stalls_.set_limit(stall_limit_.get());
  return stalls_.inspect(waiting(stop), now);
}

bool Arbiter::awaits_anything(const StopAgreement& stop) const {
  return stop.shutdown_since || !exchanges_.idle() ||
         std::ranges::any_of(sets_.all(),
                             [](const auto& entry) { return !entry.second->negotiator->idle(); });
}

/// Returns all that some rank waits for, oldest first.
std::vector<WaitingOperation> Arbiter::waiting(const StopAgreement& stop) const {
  std::vector<WaitingOperation> operations = exchanges_.waiting();
  for (const auto& [id, set] : sets_.all()) {
    std::vector<WaitingOperation> of_set = set->negotiator->waiting();
    std::ranges::move(of_set, std::back_inserter(operations));
  }
  if (auto shutdown = waiting_shutdown(stop)) operations.push_back(*std::move(shutdown));
  std::ranges::sort(operations, is_older);
  return operations;
}

std::vector<int> Arbiter::missing_in_shutdown(const StopAgreement& stop) const {
  if (!stop.agreed) return sets_.global().negotiator->not_shut_down();
  std::vector<int> missing = sets_.global().info.ranks;
  std::erase_if(missing, [&stop](int rank) { return stop.reports.contains(rank); });
  return missing;
}

/// Returns the wait of ranks that have called shutdown() for the others, if any.
std::optional<WaitingOperation> Arbiter::waiting_shutdown(const StopAgreement& stop) const {
  if (!stop.shutdown_since) return std::nullopt;
  WaitingOperation operation;
  operation.text = stop.agreed ? "the end of the last operations" : "shutdown()";
  operation.kind = Collective::Barrier;
  operation.missing_ranks = missing_in_shutdown(stop);
  if (operation.missing_ranks.empty()) return std::nullopt;  // some ranks still make a set
  const std::vector<int>& everybody = sets_.global().info.ranks;
  std::ranges::set_difference(everybody, operation.missing_ranks,
                              std::back_inserter(operation.submitted_ranks));
  operation.since = *stop.shutdown_since;
  operation.may_last = true;
  return operation;
}

void Arbiter::blame_for_shutdown(const StopAgreement& stop) const {
  const std::vector<int> missing = missing_in_shutdown(stop);
  if (!missing.empty()) {
    const std::string what = stop.agreed ? " did not finish the last operations and shut down"
                                         : " did not call shutdown()";
    throw GroupFailure{{missing.front(), format_ranks(missing) + what + kShutdownLimit}};
  }
  // All ranks have called it in time, but some are still making a set.
  const std::vector<WaitingOperation> operations = exchanges_.waiting();
  if (operations.empty()) return;
  const WaitingOperation& oldest = operations.front();
  throw GroupFailure{
      {oldest.missing_ranks.at(0),
       format_ranks(oldest.missing_ranks) + " did not end " + oldest.text + kShutdownLimit}};
}

}  // namespace ronde
