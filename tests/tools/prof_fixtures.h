// SPDX-License-Identifier: Apache-2.0
// Files for `ronde prof`, by the writers of Ronde.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "observe/dump.h"
#include "observe/report/profile.h"
#include "observe/timeline/timeline.h"
#include "tests/support/processes/temporary_folder.h"

namespace ronde::test {

using Json = nlohmann::ordered_json;

/// Two ranks that train a model of 172 MB in 161 tensors, as a profile shows them when nothing is
/// wrong. Times are in microseconds.
struct ProfiledRun {
  int ranks = 2;
  double steps = 100;
  double step_us = 200e3;
  double exposed_us = 8e3;
  double late_exposed_us = -1;  ///< of the late rank; -1: as of the others
  double backward_us = 120e3;
  double messages = 4;  ///< a step
  double message_bytes = 43e6;
  double communicate_us = 12e3;
  double negotiate_us = 90;
  double tensors = 161;  ///< a step
  double misses = 500;   ///< of a rank
  double thaws = 1;      ///< of a rank
  double last_bucket_bytes = 2e6;
  double last_lead_us = 6e3;
  int late_rank = 1;
  double late_share = 0.5;    ///< of messages
  double lost_us = 900;       ///< by each other rank for the late one, a step
  double late_lost_us = 800;  ///< by the late rank for another one, a step
  double agreement_us = 0;    ///< what the late rank waits once it has submitted, a step
  double loading_us = 4e3;    ///< a step
  std::string fusion_bytes = "64MiB";
  std::string failure = {};
  double flushes = 0;      ///< by waiters, of a rank
  double scheduled = -1;   ///< tensors by the frozen schedule, of a rank; -1: all but the first
  double tuned_thaws = 0;  ///< of `thaws`; more than 0: RONDE_AUTOTUNE
  std::string span = "load batch";

  Figures figures(int rank) const;
  /// The profile with the figures of all ranks, or of the one that wrote it.
  Profile profile(int only_rank = -1) const;
  std::string text(int only_rank = -1) const { return to_json(profile(only_rank)).dump(); }
};

inline std::uint64_t whole(double number) {
  return static_cast<std::uint64_t>(std::llround(number));
}

/// `count` durations of the same length.
inline Distribution equal_times(double count, double us) {
  const std::int64_t ns = std::llround(us * 1e3);
  return Distribution::from(std::llround(count) * ns, ns, {{ns, whole(count)}});
}

inline Figures ProfiledRun::figures(int rank) const {
  const bool is_late = rank == late_rank;
  const double count = messages * steps, all_tensors = tensors * steps;
  Figures all;
  all.seconds = steps * step_us / 1e6;
  all.steps = whole(steps);
  all.samples = all.timed_samples = 16 * all.steps;
  all.step_time = equal_times(steps, step_us);
  all.exposed = equal_times(steps, is_late && late_exposed_us >= 0 ? late_exposed_us : exposed_us);
  all.backward = equal_times(steps, backward_us);
  all.last_buckets = all.steps;
  all.last_bucket_bytes = whole(steps * last_bucket_bytes);
  all.last_bucket_lead_ns = std::llround(steps * last_lead_us * 1e3);
  all.operations = whole(all_tensors);
  all.gather = equal_times(all_tensors, 15);
  MessageFigures& message = all.messages[static_cast<int>(std::ceil(std::log2(message_bytes)))];
  message.count = whole(count);
  message.tensors = all.operations;
  message.bytes = message.uncompressed_bytes = whole(count * message_bytes);
  message.phase(Phase::Negotiate) = equal_times(count, is_late ? 5 : negotiate_us);
  message.phase(Phase::Queue) = equal_times(count, 20);
  message.phase(Phase::Communicate) = equal_times(count, communicate_us);
  message.phase(Phase::Complete) = equal_times(count, 10);
  all.last_ranks[late_rank] = {whole(late_share * count),
                               std::llround((is_late ? agreement_us : lost_us) * steps * 1e3)};
  all.last_ranks[1 - late_rank] = {whole((1 - late_share) * count),
                                   is_late ? std::llround(late_lost_us * steps * 1e3) : 0};
  all.spans[span] = {whole(steps * 1e6), equal_times(steps, loading_us)};
  if (thaws > tuned_thaws) all.thaws["a wait"] = whole(thaws - tuned_thaws);
  if (tuned_thaws > 0) all.thaws["rank 0 tries other settings"] = whole(tuned_thaws);
  all.events = 1'000'000;
  const double frozen = scheduled >= 0 ? scheduled : std::max(0.0, tensors * (steps - 3) - misses);
  all.counters = {
      {"submission", {{"operations", all.operations}, {"flushes_by_waiters", whole(flushes)}}},
      {"tuning", {{"changes", whole(tuned_thaws)}}},
      {"response_cache", {{"hits", whole(3 * tensors)}, {"misses", whole(misses)}}},
      {"schedule",
       {{"freezes", misses > all_tensors / 2 ? 0 : whole(thaws + 1)},
        {"thaws", whole(thaws)},
        {"thaws_by_wait", whole(thaws - tuned_thaws)},
        {"thaws_by_tuning", whole(tuned_thaws)},
        {"tensors", whole(frozen)}}}};
  return all;
}

inline Profile ProfiledRun::profile(int only_rank) const {
  Profile run;
  run.version = "0.1.0";
  run.ranks = ranks;
  run.failure = failure;
  run.config = {{"RONDE_FUSION_BYTES", fusion_bytes},
                {"RONDE_CYCLE_TIME_MS", "1"},
                {"RONDE_CACHE_CAPACITY", "1024"}};
  run.backends = {{"cpu", "shm"}, {"cuda", ""}};
  for (int rank = 0; rank < ranks; ++rank) {
    if (only_rank < 0 || rank == only_rank) run.add(rank, figures(rank));
  }
  return run;
}

constexpr std::int64_t kMs = 1'000'000;  ///< in nanoseconds

/// A rank's file of a timeline of one step: two buckets, of which the first is waited for 10 ms,
/// and one of process set 5. Its events begin at 1 s of the rank's clock.
struct TracedRank {
  int rank = 0;
  int ranks = 2;
  std::vector<ClockOffset> clock = {};
  std::uint64_t lost = 0;   ///< events
  bool was_killed = false;  ///< before it could end the file

  /// Makes FOLDER/rank<r>.json.
  void write(const TemporaryFolder& folder) const;
};

inline Event event_at(std::int64_t ms, EventKind kind, std::uint64_t operation,
                      const std::string& text = {}) {
  Event event;
  event.time_ns = (1000 + ms) * kMs;
  event.kind = kind;
  event.operation = operation;
  event.text = text;
  return event;
}

inline std::vector<Event> events_of_a_step() {
  std::vector<Event> all;
  const auto happens = [&](std::int64_t ms, EventKind kind, std::uint64_t operation,
                           const std::string& text = {}) -> Event& {
    return all.emplace_back(event_at(ms, kind, operation, text));
  };
  const auto bucket = [&](std::int64_t ms, EventKind kind, std::uint64_t number,
                          std::uint64_t bytes = 0, std::uint32_t set = 0) -> Event& {
    Event& event = happens(ms, kind, 0, "shm");
    event.bucket = number;
    event.bytes = event.uncompressed_bytes = bytes;
    event.set = set;
    return event;
  };
  happens(0, EventKind::StepEnded, 2).bytes = 16;
  happens(0, EventKind::SpanBegun, 1, "load batch");
  happens(8, EventKind::SpanEnded, 1).bytes = 8'000'000;
  happens(10, EventKind::SpanBegun, 2, "backward");
  happens(20, EventKind::Submitted, 7, "conv.weight").bytes = 40'000'000;
  happens(21, EventKind::Announced, 7);
  happens(21, EventKind::WaitBegun, 7);
  Event& agreed = bucket(25, EventKind::Agreed, 17);
  agreed.operation = 7;
  agreed.rank = 1;
  bucket(30, EventKind::Started, 17, 40'000'000);
  happens(31, EventKind::WaitEnded, 7);
  bucket(35, EventKind::Packed, 17).duration_ns = 5 * kMs;
  bucket(40, EventKind::Started, 17, 3000, 5);
  bucket(42, EventKind::Finished, 17, 0, 5);
  bucket(50, EventKind::Finished, 17);
  happens(50, EventKind::Completed, 7);
  bucket(55, EventKind::Started, 18, 1000);
  happens(60, EventKind::SpanEnded, 2);
  bucket(69, EventKind::Finished, 18);
  happens(100, EventKind::StepEnded, 3).bytes = 16;
  return all;
}

inline void TracedRank::write(const TemporaryFolder& folder) const {
  Timeline timeline(folder / ("rank" + std::to_string(rank) + ".json"),
                    {.rank = rank, .size = ranks, .host = "n1"}, [this] { return clock; });
  timeline.take(events_of_a_step(), lost);
  if (!was_killed) timeline.finish({});
}

}  // namespace ronde::test
