// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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
  std::string failure;
  double flushes = 0;      ///< by waiters, of a rank
  double scheduled = -1;   ///< tensors by the frozen schedule, of a rank; -1: all but the first
  double tuned_thaws = 0;  ///< of `thaws`; more than 0: RONDE_AUTOTUNE
  std::string span = "load batch";

  /// What one rank says.
  Json figures(int rank) const;
  /// The whole file.
  Json profile() const;
};

/// `count` durations of the same length.
inline Json equal_times(double count, double us) {
  return {{"count", count}, {"total_us", count * us}, {"p50_us", us},
          {"p99_us", us},   {"max_us", us},           {"histogram", {{us, count}}}};
}

inline Json ProfiledRun::figures(int rank) const {
  const bool is_late = rank == late_rank;
  const double count = messages * steps;
  double up_to = 1024;
  while (up_to < message_bytes) up_to *= 2;
  const Json phases = {{"negotiate", equal_times(count, is_late ? 5 : negotiate_us)},
                       {"queue", equal_times(count, 20)},
                       {"communicate", equal_times(count, communicate_us)},
                       {"complete", equal_times(count, 10)}};
  return {
      {"rank", rank},
      {"seconds", steps * step_us / 1e6},
      {"steps",
       {{"count", steps},
        {"samples", steps * 16},
        {"time", equal_times(steps, step_us)},
        {"exposed",
         equal_times(steps, is_late && late_exposed_us >= 0 ? late_exposed_us : exposed_us)},
        {"backward", equal_times(steps, backward_us)},
        {"last_bucket", {{"bytes", last_bucket_bytes}, {"lead_us", last_lead_us}}}}},
      {"messages",
       {{{"up_to_bytes", up_to},
         {"count", count},
         {"tensors", tensors * steps},
         {"bytes", count * message_bytes},
         {"uncompressed_bytes", count * message_bytes},
         {"phases", phases}}}},
      {"operations", {{"count", tensors * steps}, {"gather", equal_times(tensors * steps, 15)}}},
      {"last_ranks",
       {{{"rank", late_rank},
         {"count", late_share * count},
         {"lost_us", (is_late ? agreement_us : lost_us) * steps}},
        {{"rank", 1 - late_rank},
         {"count", (1 - late_share) * count},
         {"lost_us", is_late ? late_lost_us * steps : 0}}}},
      {"spans",
       {{{"name", span},
         {"count", steps},
         {"bytes", steps * 1e6},
         {"time", equal_times(steps, loading_us)}}}},
      {"events", {{"written", 1e6}, {"lost", 0}}},
      {"counters",
       {{"submission", {{"operations", tensors * steps}, {"flushes_by_waiters", flushes}}},
        {"tuning", {{"changes", tuned_thaws}}},
        {"response_cache", {{"hits", 3 * tensors}, {"misses", misses}}},
        {"schedule",
         {{"freezes", misses > tensors * steps / 2 ? 0 : thaws + 1},
          {"thaws", thaws},
          {"thaws_by_submission", 0},
          {"thaws_by_wait", thaws - tuned_thaws},
          {"thaws_by_time_limit", 0},
          {"thaws_by_tuning", tuned_thaws},
          {"tensors",
           scheduled >= 0 ? scheduled : std::max(0.0, tensors * (steps - 3) - misses)}}}}}};
}

inline Json ProfiledRun::profile() const {
  Json json = {{"ronde_profile", 1},
               {"version", "0.1.0"},
               {"ranks", ranks},
               {"hosts", 1},
               {"complete", failure.empty()},
               {"missing_ranks", Json::array()},
               {"config",
                {{"RONDE_FUSION_BYTES", fusion_bytes},
                 {"RONDE_CYCLE_TIME_MS", "1"},
                 {"RONDE_CACHE_CAPACITY", "1024"}}},
               {"backends", {{"cpu", "shm"}, {"cuda", ""}}},
               {"per_rank", Json::array()}};
  if (!failure.empty()) json["failure"] = failure;
  for (int rank = 0; rank < ranks; ++rank) json["per_rank"].push_back(figures(rank));
  return json;
}

/// A rank's file of a timeline, as RONDE_TIMELINE writes it, with one step: two buckets, of which
/// the first is waited for 10 ms, and one of process set 5. `base_us` is the time at which it
/// begins, on the clock of the rank.
struct TracedRank {
  int rank = 0;
  int ranks = 2;
  double base_us = 1e6;
  Json clock = Json::object();
  Json end = {{"events_lost", 0}};

  std::vector<Json> events() const;
  std::string text() const;
};

inline std::vector<Json> TracedRank::events() const {
  const auto slice = [&](int track, const char* category, const std::string& name, double at,
                         double length, Json args = Json::object()) {
    return Json{{"ph", "X"},    {"cat", category},    {"name", name},  {"pid", rank},
                {"tid", track}, {"ts", base_us + at}, {"dur", length}, {"args", args}};
  };
  const auto async = [&](const char* phase, const char* name, int id, double at,
                         Json args = Json::object()) {
    return Json{{"ph", phase}, {"cat", "tensor"},    {"name", name}, {"pid", rank},
                {"tid", 4},    {"ts", base_us + at}, {"id", id},     {"args", args}};
  };
  const auto bucket = [&](int number, double bytes, int set = 0) {
    return Json{{"kind", "allreduce"}, {"set", set},     {"bucket", number},
                {"operations", 2},     {"bytes", bytes}, {"backend", "shm"}};
  };
  std::vector<Json> all = {
      {{"ph", "M"},
       {"name", "thread_name"},
       {"pid", rank},
       {"tid", 1},
       {"args", {{"name", "steps"}}}},
      async("b", "conv.weight", 7, 20e3),
      async("n", "announced", 7, 21e3),
      async("n", "agreed", 7, 25e3, {{"last_rank", 1}, {"bucket", 17}, {"set", 0}}),
      slice(3, "communication", "allreduce 40000000 bytes", 30e3, 20e3, bucket(17, 40e6)),
      slice(3, "communication", "pack", 30e3, 5e3, {{"sum_of_chunks", true}}),
      slice(1005, "communication", "allreduce 3000 bytes", 40e3, 2e3, bucket(17, 3000, 5)),
      async("e", "conv.weight", 7, 50e3),
      slice(3, "communication", "allreduce 1000 bytes", 55e3, 14e3, bucket(18, 1000)),
      slice(2, "backward", "backward", 10e3, 50e3),
      slice(10, "wait", "wait conv.weight", 21e3, 10e3, {{"operation", 7}}),
      slice(10, "span", "load batch", 0, 8e3, {{"bytes", 8e6}}),
      slice(1, "step", "step 3", 0, 100e3, {{"samples", 16}})};
  all.push_back({{"ph", rank == 0 ? "s" : "f"},
                 {"cat", "bucket"},
                 {"id", 17},
                 {"pid", rank},
                 {"tid", 3},
                 {"ts", base_us + 30e3},
                 {"name", "bucket"}});
  return all;
}

inline std::string TracedRank::text() const {
  const Json info = {{"backend", "ronde"}, {"rank", rank}, {"world_size", ranks}, {"host", "n1"}};
  const Json ronde = {{"timeline", 1}, {"version", "0.1.0"}, {"clock", clock}};
  std::string text =
      "{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\",\n\"distributedInfo\": " + info.dump() +
      ",\n\"ronde\": " + ronde.dump() + ",\n\"traceEvents\":[\n";
  const char* separator = "";
  for (const Json& event : events()) {
    text += separator + event.dump();
    separator = ",\n";
  }
  return text + "\n],\n\"ronde_end\": " + end.dump() + "}\n";
}

}  // namespace ronde::test
