// SPDX-License-Identifier: Apache-2.0
// Time limits: of stalled operations, of those in progress, of rank 0's answers, of a shutdown.
#include <algorithm>
#include <iterator>

#include "coordinator.h"
#include "durations.h"
#include "rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// How much longer a rank waits than its parent, in shutdown and for stalled operations: whoever is
/// nearer to rank 0 knows better whom to name.
constexpr std::chrono::seconds kHeadStart{2};

}  // namespace

void Coordinator::inspect() {
  const Clock::time_point now = Clock::now();
  if (schedule_) schedule_->inspect(now);
  std::optional<Clock::duration> limit;
  if (options_.config.stall_abort_s > 0) limit = from_s(options_.config.stall_abort_s);
  for (const SetEngine* set : running_) {
    if (!set->busy()) continue;
    const std::string text = set->executor->overdue(now, limit);
    if (!text.empty()) throw GroupFailure{{tree_.rank(), text, false}};
  }
  inspect_shutdown(now);
  if (tree_.is_arbiter()) {
    inspect_waiting(now);
  } else {
    inspect_arbiter(now);
  }
}

/// Since when this rank has waited for a decision of rank 0.
std::optional<Coordinator::Clock::time_point> Coordinator::awaits_arbiter_since() const {
  std::optional<Clock::time_point> oldest;
  const auto look_at = [&oldest](std::optional<Clock::time_point> time) {
    if (time && (!oldest || *time < *oldest)) oldest = time;
  };
  for (const SetEngine* set : running_) look_at(set->announcer->oldest_announcement());
  for (const auto& [key, exchange] : exchanges_) look_at(exchange->since);
  return oldest;
}

/// By when rank 0 must have decided what this rank waits for, or have failed the group for it.
std::optional<Coordinator::Clock::time_point> Coordinator::arbiter_deadline() const {
  if (tree_.is_arbiter() || options_.config.stall_abort_s <= 0) return std::nullopt;
  const auto since = awaits_arbiter_since();
  if (!since) return std::nullopt;
  return *since + from_s(options_.config.stall_abort_s) + head_start();
}

/// Since when nothing has come from above though this rank waits for it.
std::optional<Coordinator::Clock::time_point> Coordinator::silent_since() const {
  if (tree_.is_arbiter() || options_.config.stall_warn_s <= 0) return std::nullopt;
  std::optional<Clock::time_point> since = awaits_arbiter_since();
  if (!since) since = shutdown_since_;
  return since ? std::optional(std::max(*since, heard_from_above_)) : std::nullopt;
}

/// When to warn of it: rank 0 would have told of a stall by then.
std::optional<Coordinator::Clock::time_point> Coordinator::silence_deadline() const {
  const auto since = silent_since();
  if (!since) return std::nullopt;
  const auto period = from_s(options_.config.stall_warn_s);
  return std::max(*since + period + head_start(), warned_of_silence_ + period);
}

/// The children hear of it as of a stall, and so do not say the same of this rank.
void Coordinator::warn_of_silence(Clock::time_point now) {
  warned_of_silence_ = now;
  StalledOperation stalled;
  stalled.text = "an answer of " + rank_name(tree_.parent());
  stalled.kind = Collective::Barrier;
  stalled.submitted_ranks = {tree_.rank()};
  stalled.missing_ranks = {tree_.parent()};
  stalled.waiting =
      std::chrono::duration_cast<std::chrono::milliseconds>(now - silent_since().value_or(now));
  log_->warning(rank_name(tree_.parent()) + " has said nothing for " +
                std::to_string(stalled.waiting.count() / 1000) +
                " s: see whether its process is stopped or hangs" + pending_text());
  tree_.send_down(StallMessage{{stalled}});
  if (options_.on_stall) options_.on_stall({stalled});
}

Coordinator::Clock::duration Coordinator::head_start() const {
  if (tree_.is_arbiter()) return Clock::duration::zero();
  return tree_.parent() == 0 ? kHeadStart : 2 * kHeadStart;
}

void Coordinator::inspect_arbiter(Clock::time_point now) {
  const auto warns = silence_deadline();
  if (warns && now >= *warns) warn_of_silence(now);
  const auto deadline = arbiter_deadline();
  if (!deadline || now < *deadline) return;
  throw GroupFailure{
      {tree_.parent(), rank_name(tree_.parent()) +
                           " does not answer: it let RONDE_STALL_ABORT_S pass without a "
                           "word; see whether its process is stopped or hangs" +
                           pending_text()},
      true};
}

std::vector<int> Coordinator::unfinished() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < finished_.size(); ++rank) {
    if (!finished_[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

void Coordinator::inspect_waiting(Clock::time_point now) {
  const auto period = stalls_.period();
  if (!period || now < next_inspection_ || !awaits_anything()) return;
  next_inspection_ = now + *period;
  const StallInspector::Finding finding = stalls_.inspect(waiting(), now);
  if (!finding.stalled.empty()) {
    counters_.stall_reports.add();
    log_->warning("stalled operations:\n" + stall_text(finding.stalled));
    tree_.send_down(StallMessage{finding.stalled});
    if (options_.on_stall) options_.on_stall(finding.stalled);
  }
  if (finding.fatal) throw GroupFailure{*finding.fatal};
}

bool Coordinator::awaits_anything() const {
  if (!tree_.is_arbiter()) return false;
  return shutdown_since_ || !desk_->idle() ||
         std::any_of(sets_.begin(), sets_.end(),
                     [](const auto& entry) { return !entry.second->negotiator->idle(); });
}

/// Rank 0: all that some rank waits for, oldest first.
std::vector<WaitingOperation> Coordinator::waiting() const {
  std::vector<WaitingOperation> operations = desk_->waiting();
  for (const auto& [id, set] : sets_) {
    std::vector<WaitingOperation> of_set = set->negotiator->waiting();
    std::move(of_set.begin(), of_set.end(), std::back_inserter(operations));
  }
  if (auto shutdown = waiting_shutdown()) operations.push_back(*std::move(shutdown));
  std::sort(operations.begin(), operations.end(), is_older);
  return operations;
}

/// Rank 0: ranks that have called shutdown() wait for the others.
std::optional<WaitingOperation> Coordinator::waiting_shutdown() const {
  if (!shutdown_since_) return std::nullopt;
  WaitingOperation operation;
  operation.text = agreed_to_stop_ ? "the end of the last operations" : "shutdown()";
  operation.kind = Collective::Barrier;
  operation.missing = agreed_to_stop_ ? unfinished() : global_.negotiator->not_shut_down();
  if (operation.missing.empty()) return std::nullopt;  // some ranks make a set, and are waited for
  std::set_difference(global_.info.ranks.begin(), global_.info.ranks.end(),
                      operation.missing.begin(), operation.missing.end(),
                      std::back_inserter(operation.submitted));
  operation.since = *shutdown_since_;
  operation.may_last = true;
  return operation;
}

/// All ranks have called shutdown in time, but some are still making a set.
void Coordinator::inspect_late_sets() const {
  const std::vector<WaitingOperation> operations = desk_->waiting();
  if (operations.empty()) return;
  const WaitingOperation& oldest = operations.front();
  throw GroupFailure{
      {oldest.missing.at(0), format_ranks(oldest.missing) + " did not end " + oldest.text +
                                 " within RONDE_SHUTDOWN_TIMEOUT_S of the first shutdown()"}};
}

void Coordinator::inspect_shutdown(Clock::time_point now) {
  if (tree_.is_arbiter() && !shutdown_since_ && global_.negotiator->any_shut_down()) {
    shutdown_since_ = now;  // the first rank of all has called it
  }
  const auto deadline = shutdown_deadline();
  if (!deadline || now < *deadline || all_finished_) return;
  const std::string limit = "within RONDE_SHUTDOWN_TIMEOUT_S of the first rank that did";
  if (!tree_.is_arbiter()) {
    throw GroupFailure{
        {tree_.parent(), rank_name(tree_.parent()) + " did not end the shutdown " + limit}, true};
  }
  const std::vector<int> missing =
      agreed_to_stop_ ? unfinished() : global_.negotiator->not_shut_down();
  if (missing.empty()) return inspect_late_sets();
  const std::string what = agreed_to_stop_ ? " did not finish the last operations and shut down "
                                           : " did not call shutdown() ";
  throw GroupFailure{{missing.front(), format_ranks(missing) + what + limit}};
}

/// None unless the user has set a limit.
std::optional<Coordinator::Clock::time_point> Coordinator::shutdown_deadline() const {
  const double timeout_s = options_.config.shutdown_timeout_s;
  if (!shutdown_since_ || timeout_s <= 0) return std::nullopt;
  return *shutdown_since_ + from_s(timeout_s) + head_start();
}

}  // namespace ronde
