// SPDX-License-Identifier: Apache-2.0
#include "core/src/loop/engine_stats.h"

#include <utility>

namespace ronde {

void add_engine_stats(const SubmissionQueue::Counters& queue, const EngineCounters& engine,
                      Stats& stats) {
  stats.push_back({"submission",
                   {{"operations", queue.submitted.get()},
                    {"bytes", queue.submitted_bytes.get()},
                    {"wakes", queue.wakes.get()},
                    {"flushes_by_waiters", queue.flushes.get()}}});
  stats.push_back({"coordinator",
                   {{"cycles", engine.cycles.get()},
                    {"sleeps", engine.sleeps.get()},
                    {"driven_by_callers", engine.driven_by_callers.get()},
                    {"ready_messages", engine.ready_messages.get()},
                    {"stall_reports", engine.stall_reports.get()}}});
  stats.push_back(
      {"process_sets", {{"made", engine.sets_made.get()}, {"removed", engine.sets_removed.get()}}});
  if (engine.tunings.get() == 0) return;
  stats.push_back({"tuning",
                   {{"changes", engine.tunings.get()},
                    {"fusion_bytes", engine.fusion_bytes.get()},
                    {"cycle_time_us", engine.cycle_time_us.get()},
                    {"freeze_after_steps", engine.freeze_after_steps.get()}}});
}

void add_schedule_stats(const FrozenSchedule::Counters& schedule, Stats& stats) {
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

void add_set_stats(const SetEngine& set, bool has_devices, Stats& stats) {
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
    if (has_devices) {
      const auto& devices = set.executor->device_counters();
      add("device_execution",
          Values{{"queued", devices.queued.get()}, {"passed", devices.passed.get()}});
    }
  }
  for (const auto& [device, backend] : set.backends) {
    StatsGroup group = backend->stats();
    group.part += suffix;
    stats.push_back(std::move(group));
  }
}

}  // namespace ronde
