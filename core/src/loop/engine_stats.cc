// SPDX-License-Identifier: Apache-2.0
// Counters as the parts of Runtime::stats(), which docs/tuning.md and docs/notes/counters.md list.
#include <utility>

#include "core/src/loop/control_plane.h"

namespace ronde {
namespace {

void add_set_stats(const SetEngine& set, Stats& stats) {
  const std::string suffix = set.is_global() ? "" : " of set " + std::to_string(set.info.id);
  using Values = decltype(StatsGroup::counters);
  const auto add = [&](const std::string& part, Values values) {
    stats.push_back({part + suffix, std::move(values)});
  };
  if (set.announcer) {
    const auto& announcer = set.announcer->counters();
    add("response_cache", Values{{"hits", announcer.cache_hits.get()},
                                 {"misses", announcer.cache_misses.get()},
                                 {"reannounced", announcer.reannounced.get()},
                                 {"expired", announcer.expired.get()}});
  }
  if (set.combiner) {
    const auto& combiner = set.combiner->counters();
    add("combining", Values{{"messages", combiner.messages.get()},
                            {"combined", combiner.combined.get()},
                            {"scattered", combiner.scattered.get()}});
  }
  if (set.negotiator) {
    const auto& negotiator = set.negotiator->counters();
    add("negotiation", Values{{"decisions", negotiator.decisions.get()},
                              {"agreed_by_slot", negotiator.agreed_by_slot.get()},
                              {"agreed_in_full", negotiator.agreed_in_full.get()},
                              {"messages", negotiator.messages.get()},
                              {"refused", negotiator.refused.get()},
                              {"evictions", negotiator.evictions.get()}});
  }
  if (set.executor) {
    const auto& executor = set.executor->counters();
    add("execution", Values{{"buckets", executor.buckets.get()},
                            {"tensors", executor.tensors.get()},
                            {"fused_tensors", executor.fused_tensors.get()},
                            {"skipped_tensors", executor.skipped_tensors.get()},
                            {"bytes", executor.bytes.get()},
                            {"uncompressed_bytes", executor.uncompressed_bytes.get()},
                            {"largest_bucket_bytes", executor.largest_bucket_bytes.get()},
                            {"busy_us", executor.busy_us.get()}});
    if (set.backends.contains(DeviceKind::Cuda)) {
      add("device_execution", Values{{"queued", executor.queued_on_devices.get()},
                                     {"passed", executor.passed_on_devices.get()}});
    }
  }
  for (const auto& [device, backend] : set.backends) {
    StatsGroup group = backend->stats();
    group.part += suffix;
    stats.push_back(std::move(group));
  }
}

}  // namespace

Stats ControlPlane::stats() const {
  Stats stats;
  const SubmissionQueue::Counters& queue = queue_.counters();
  stats.push_back({"submission",
                   {{"operations", queue.submitted.get()},
                    {"bytes", queue.submitted_bytes.get()},
                    {"wakes", queue.wakes.get()},
                    {"flushes_by_waiters", queue.flushes.get()}}});
  stats.push_back({"coordinator",
                   {{"cycles", counters_.cycles.get()},
                    {"sleeps", counters_.sleeps.get()},
                    {"driven_by_callers", counters_.driven_by_callers.get()},
                    {"ready_messages", counters_.ready_messages.get()},
                    {"stall_reports", counters_.stall_reports.get()},
                    {"stall_limit_s", stall_limit_.seconds()}}});
  stats.push_back(
      {"process_sets",
       {{"made", counters_.sets_made.get()}, {"removed", counters_.sets_removed.get()}}});
  if (counters_.tunings.get() > 0) {
    stats.push_back({"tuning",
                     {{"changes", counters_.tunings.get()},
                      {"fusion_bytes", counters_.fusion_bytes.get()},
                      {"cycle_time_us", counters_.cycle_time_us.get()},
                      {"freeze_after_steps", counters_.freeze_after_steps.get()}}});
  }
  if (schedule_) {
    const FrozenSchedule::Counters& schedule = schedule_->counters();
    stats.push_back({"schedule",
                     {{"freezes", schedule.freezes.get()},
                      {"thaws", schedule.thaws.get()},
                      {"thaws_by_submission", schedule.thaws_by_submission.get()},
                      {"thaws_by_wait", schedule.thaws_by_wait.get()},
                      {"thaws_by_time_limit", schedule.thaws_by_time_limit.get()},
                      {"thaws_by_tuning", schedule.thaws_by_tuning.get()},
                      {"tensors", schedule.tensors.get()},
                      {"buckets", schedule.buckets.get()}}});
  }
  sets_.add_stats(stats);
  return stats;
}

void SetEngines::add_stats(Stats& stats) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, set] : sets_) add_set_stats(*set, stats);
}

}  // namespace ronde
