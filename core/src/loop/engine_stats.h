// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/src/agree/frozen_schedule.h"
#include "core/src/base/counter.h"
#include "core/src/loop/set_engines.h"
#include "core/src/op/submission_queue.h"
#include "ronde/stats.h"

namespace ronde {

/// Counters of the engine of a rank outside its process sets.
struct EngineCounters {
  Counter cycles, sleeps, driven_by_callers, messages, decisions, ready_messages, stall_reports;
  Counter sets_made, sets_removed;
  Counter tunings, fusion_bytes, cycle_time_us, freeze_after_steps;  ///< since the last of them
};

// Counters as the parts of Runtime::stats(), which docs/tuning.md and docs/notes/counters.md list.

void add_engine_stats(const SubmissionQueue::Counters& queue, const EngineCounters& engine,
                      Stats& stats);
void add_schedule_stats(const FrozenSchedule::Counters& schedule, Stats& stats);
/// `has_devices`: the group has a backend for devices.
void add_set_stats(const SetEngine& set, bool has_devices, Stats& stats);

}  // namespace ronde
