// SPDX-License-Identifier: Apache-2.0
// How the loop enters, follows and leaves a frozen schedule: Note [Frozen schedule].
#include "coordinator.h"
#include "ronde/error.h"

namespace ronde {

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
  // What ranks had announced of the next round goes with the schedule: rank 0 forgets it, too.
  queue_->freeze(std::move(plan), announcer.drain());
}

void Coordinator::follow_schedule() {
  if (!schedule_) return;
  while (auto bucket = schedule_->take()) global_.executor->enqueue_bucket(std::move(*bucket));
  auto remains = schedule_->finish_thaw();
  if (!remains) return;
  for (std::vector<Agreed>& bucket : remains->buckets) {
    global_.executor->enqueue_bucket(std::move(bucket));
  }
  for (Submission& submission : remains->submissions) global_.announcer->add(std::move(submission));
  if (learner_) {
    learner_->thawed(remains->reason == FrozenSchedule::Thaw::Wait, remains->rounds);
  }
}

}  // namespace ronde
