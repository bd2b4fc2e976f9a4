// SPDX-License-Identifier: Apache-2.0
// How the loop enters, follows and leaves a frozen schedule: Note [Frozen schedule].
#include "coordinator.h"
#include "ronde/error.h"

namespace ronde {
namespace {

std::string reason_text(FrozenSchedule::Thaw reason) {
  switch (reason) {
    case FrozenSchedule::Thaw::Submission:
      return "an operation was submitted that is not in it";
    case FrozenSchedule::Thaw::Wait:
      return "a wait for what comes after an operation that was not submitted";
    case FrozenSchedule::Thaw::TimeLimit:
      return "a bucket stayed incomplete for too long";
    case FrozenSchedule::Thaw::Shutdown:
      break;
  }
  return "shutdown() was called";
}

}  // namespace

/// Rank 0: has the decision freeze a schedule if it is time.
void Coordinator::learn(DecisionMessage& decision) {
  if (!learner_) return;
  std::vector<ScheduleLearner::Operation> operations;
  bool fits = true;
  const auto add = [&](std::uint32_t slot, bool contributed) {
    const CachedResponse& response = global_.announcer->response(slot);
    fits = fits && response.meta.kind != Collective::Barrier;  // nor a group
    const std::uint64_t bytes = contributed ? global_.executor->wire_bytes(response.meta) : 0;
    operations.push_back({slot, !response.name.empty(), contributed, {response.meta, bytes}});
  };
  decision.cached.for_each(
      [&](std::size_t bit) { add(static_cast<std::uint32_t>(bit), !decision.skipped.test(bit)); });
  for (const KeyedSlot& item : decision.keyed) add(item.slot, item.contributes);
  for (const Response& response : decision.responses) fits = fits && !response.error.empty();
  const bool after_wait = global_.negotiator->take_after_wait();
  if (!fits) {
    learner_->forget();
    return;
  }
  auto schedule = learner_->observe(operations, after_wait, Clock::now());
  if (!schedule || !global_.negotiator->may_freeze()) return;
  decision.schedule = std::move(*schedule);
  global_.negotiator->freeze();
}

void Coordinator::freeze(const ScheduleMessage& message) {
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
  if (log_->enabled(LogLevel::Debug)) {
    std::size_t operations = 0;
    for (const auto& bucket : plan.buckets) operations += bucket.size();
    log_->debug("froze a schedule; operations: " + std::to_string(operations) +
                ", buckets: " + std::to_string(plan.buckets.size()) +
                ", patience: " + std::to_string(message.patience_ms) + " ms");
  }
  // What ranks had announced of the next round goes with the schedule: rank 0 forgets it, too.
  queue_->freeze(std::move(plan), announcer.drain());
}

void Coordinator::follow_schedule() {
  if (!schedule_) return;
  while (auto bucket = schedule_->take()) global_.executor->enqueue_bucket(std::move(*bucket));
  auto remains = schedule_->finish_thaw();
  if (!remains) return;
  if (log_->enabled(LogLevel::Debug)) {
    log_->debug("thawed the schedule (rounds: " + std::to_string(remains->rounds) +
                "): " + reason_text(remains->reason) +
                (remains->cause.empty() ? ", on another rank" : "; here: " + remains->cause));
  }
  for (std::vector<Agreed>& bucket : remains->buckets) {
    global_.executor->enqueue_bucket(std::move(bucket));
  }
  for (Submission& submission : remains->submissions) global_.announcer->add(std::move(submission));
  if (learner_) {
    learner_->thawed(remains->reason == FrozenSchedule::Thaw::Wait, remains->rounds);
  }
}

}  // namespace ronde
