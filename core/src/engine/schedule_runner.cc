// SPDX-License-Identifier: Apache-2.0
#include "core/src/engine/schedule_runner.h"

#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "core/src/schedule/arrival_words.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// A frozen schedule is given up after this part of the time after which a stall is warned of, as
/// only rank 0's negotiation knows who is missing.
constexpr double kThawsBeforeWarning = 2.0;

std::string reason_text(FrozenSchedule::Thaw reason) {
  constexpr std::array<const char*, 5> kTexts = {
      "an operation was submitted that is not in it",
      "a wait for what comes after an operation that was not submitted",
      "a bucket stayed incomplete for too long", "shutdown() was called",
      "rank 0 tries other settings"};
  return kTexts.at(static_cast<std::size_t>(reason));
}

}  // namespace

void ScheduleRunner::start(const Config& config, const ControlTree& tree, Board& board) {
  if (config.verify) return;  // rank 0 compares results in the order of decisions
  // Once made it can be left unused, but not the other way round.
  if (config.freeze_after_steps == 0 && !config.autotune && config.tuned.empty()) return;
  if (tree.size() > ArrivalWords::kMostRanks) {
    if (tree.is_arbiter()) {
      log_.debug("no schedule is frozen: it serves at most " +
                 std::to_string(ArrivalWords::kMostRanks) + " ranks, and there are " +
                 std::to_string(tree.size()));
    }
    return;
  }
  const double longest_wait_s = config.stall_warn_s > 0
                                    ? config.stall_warn_s / kThawsBeforeWarning
                                    : config.stall_abort_s / kThawsBeforeWarning;
  schedule_ =
      std::make_unique<FrozenSchedule>(board, tree.rank(), tree.size(),
                                       std::chrono::duration_cast<FrozenSchedule::Clock::duration>(
                                           std::chrono::duration<double>(longest_wait_s)),
                                       queue_.events());
  queue_.use(schedule_.get());
}

void ScheduleRunner::freeze(const ScheduleMessage& message) {
  if (!schedule_) throw Error("rank 0 freezes a schedule, but this rank shares no memory with it");
  Announcer& announcer = *global_.announcer;
  FrozenSchedule::Plan plan;
  plan.patience = std::chrono::milliseconds(message.patience_ms);
  for (const std::vector<ScheduledSlot>& slots : message.buckets) {
    std::vector<FrozenSchedule::Item>& bucket = plan.buckets.emplace_back();
    for (const ScheduledSlot& item : slots) {
      bucket.push_back(
          {announcer.response(item.slot), announcer.contributed(item.slot), item.contributed});
    }
  }
  if (log_.enabled(LogLevel::Debug)) {
    std::size_t operations = 0;
    for (const auto& bucket : plan.buckets) operations += bucket.size();
    log_.debug("froze a schedule; operations: " + std::to_string(operations) +
               ", buckets: " + std::to_string(plan.buckets.size()) +
               ", patience: " + std::to_string(message.patience_ms) + " ms");
  }
  queue_.events().write({.time_ns = EventLog::now_ns(), .kind = EventKind::Frozen});
  // Announcements of the next round end with the negotiation: rank 0 forgets them, too.
  queue_.freeze(std::move(plan), announcer.drain());
}

void ScheduleRunner::follow(Arbiter* arbiter) {
  if (!schedule_) return;
  while (auto bucket = schedule_->take()) global_.executor->enqueue_bucket(std::move(*bucket));
  auto remains = schedule_->finish_thaw();
  if (!remains) return;
  queue_.events().write({.time_ns = EventLog::now_ns(), .kind = EventKind::Thawed},
                        reason_text(remains->reason));
  if (log_.enabled(LogLevel::Debug)) {
    log_.debug("thawed the schedule (rounds: " + std::to_string(remains->rounds) +
               "): " + reason_text(remains->reason) +
               (remains->cause.empty() ? ", on another rank" : "; here: " + remains->cause));
  }
  queue_.put_back(std::move(remains->submissions));
  if (arbiter != nullptr) {
    arbiter->note_thawed(remains->reason, remains->rounds);
  }
}

}  // namespace ronde
