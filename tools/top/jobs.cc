// SPDX-License-Identifier: Apache-2.0
#include "tools/top/jobs.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <tuple>

namespace ronde::tool::top {
namespace {

using Json = nlohmann::ordered_json;

/// Rates are over so many polls, so that those of slow steps are steady.
constexpr std::size_t kPolls = 6;
constexpr double kUsPerS = 1e6;
constexpr double kMega = 1e6;

struct Column {
  const char *key, *title;
  double unit;
};
constexpr std::array<Column, 4> kGpuColumns = {{{"gpu_utilization_percent", "gpu %", 1},
                                                {"gpu_used_bytes", "gpu MB", kMega},
                                                {"nvlink_received_bytes_per_s", "nvlink in", kMega},
                                                {"nvlink_sent_bytes_per_s", "out MB/s", kMega}}};

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

/// Ranks of one launcher, program and world; a rank that comes twice is of another job.
std::vector<std::vector<Json>> grouped(const std::vector<Answer>& answers) {
  using Key = std::tuple<int, std::string, std::string, int, int>;
  std::map<Key, std::vector<Json>> jobs;
  for (const Answer& answer : answers) {
    if (answer.json.is_null()) continue;
    const Json& rank = answer.json;
    Key key(rank.at("launcher"), rank.at("program"), rank.value("world", ""), rank.at("ranks"), 0);
    const auto has_rank = [&](const Json& other) { return other.at("rank") == rank.at("rank"); };
    while (std::ranges::any_of(jobs[key], has_rank)) ++std::get<4>(key);
    jobs[key].push_back(rank);
  }
  std::vector<std::vector<Json>> result;
  for (auto& [key, ranks] : jobs) {
    std::ranges::sort(ranks, {}, [](const Json& rank) { return rank.at("rank").get<int>(); });
    if (!ranks.empty()) result.push_back(std::move(ranks));
  }
  return result;
}

template <typename... Values>
std::string formatted(const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

double number(const Json& json, const char* key) {
  return json.at(key).get<double>();
}

/// Those that a rank has something for.
std::vector<Column> gpu_columns(const Json& rows) {
  std::vector<Column> columns;
  std::ranges::copy_if(kGpuColumns, std::back_inserter(columns), [&](const Column& column) {
    return std::ranges::any_of(rows, [&](const Json& row) { return row.contains(column.key); });
  });
  return columns;
}

}  // namespace

Jobs::Numbers Jobs::numbers_of(const Json& figures) {
  const Json& steps = figures.at("steps");
  Numbers numbers{.seconds = figures.at("seconds"),
                  .steps = steps.at("count"),
                  .samples = steps.at("samples"),
                  .exposed_us = steps.at("exposed").at("total_us"),
                  .step_us = steps.at("time").at("total_us"),
                  .waited_us = {}};
  for (const Json& message : figures.at("messages")) numbers.bytes += number(message, "bytes");
  for (const Json& last : figures.at("last_ranks")) {
    if (last.at("rank") >= 0) numbers.waited_us[last.at("rank")] = number(last, "lost_us");
  }
  return numbers;
}

/// What has come since the oldest of the recent calls, or since init.
Jobs::Numbers Jobs::recent_of(const Json& rank) {
  Numbers now = numbers_of(rank.at("figures"));
  std::deque<Numbers>& history =
      histories_[{rank.at("pid"), rank.value("world", ""), rank.at("rank")}];
  if (!history.empty() && now.seconds < history.back().seconds) history.clear();
  history.push_back(now);
  if (history.size() == 1) return now;
  if (history.size() > kPolls) history.pop_front();
  const Numbers& before = history.front();
  now.seconds -= before.seconds;
  now.steps -= before.steps;
  now.samples -= before.samples;
  now.bytes -= before.bytes;
  now.exposed_us -= before.exposed_us;
  now.step_us -= before.step_us;
  for (const auto& [last, waited_us] : before.waited_us) now.waited_us[last] -= waited_us;
  return now;
}

Json Jobs::job_of(const std::vector<Json>& ranks) {
  const Json& first = ranks.front();
  Json job;
  job["world"] = first.value("world", "");
  for (const char* const key : {"program", "host", "ranks", "hosts", "backends"}) {
    job[key] = first.at(key);
  }
  Json rows = Json::array();
  double steps_per_s = 0, samples_per_s = 0, bytes_per_s = 0, seconds = 0;
  Numbers sum;
  for (const Json& rank : ranks) {
    const Numbers recent = recent_of(rank);
    steps_per_s = std::max(steps_per_s, ratio(recent.steps, recent.seconds));
    samples_per_s += ratio(recent.samples, recent.seconds);
    bytes_per_s += ratio(recent.bytes, recent.seconds);
    seconds = std::max(seconds, recent.seconds);
    sum.exposed_us += recent.exposed_us;
    sum.step_us += recent.step_us;
    for (const auto& [last, waited_us] : recent.waited_us) sum.waited_us[last] += waited_us;
    Json& row = rows.emplace_back(rank.at("system"));
    row["rank"] = rank.at("rank");
    row["pid"] = rank.at("pid");
    row["exposed"] = ratio(recent.exposed_us, recent.step_us);
  }
  job["steps_per_s"] = steps_per_s;
  job["samples_per_s"] = samples_per_s;
  job["bytes_per_s"] = bytes_per_s;
  job["exposed"] = ratio(sum.exposed_us, sum.step_us);
  const auto latest =
      std::ranges::max_element(sum.waited_us, {}, [](const auto& waited) { return waited.second; });
  if (latest != sum.waited_us.end() && latest->second > 0) {
    const auto others = static_cast<double>(std::max<std::size_t>(ranks.size() - 1, 1));
    job["late"] = {{"rank", latest->first},
                   {"waited", ratio(latest->second / kUsPerS, seconds * others)}};
  }
  job["ranks_here"] = std::move(rows);
  return job;
}

Json Jobs::take(const std::vector<Answer>& answers, int pid) {
  Json jobs = Json::array();
  for (const std::vector<Json>& ranks : grouped(answers)) {
    const auto is_it = [pid](const Json& rank) { return rank.at("pid") == pid; };
    if (pid == 0 || std::ranges::any_of(ranks, is_it)) jobs.push_back(job_of(ranks));
  }
  return jobs;
}

std::string text_of(const Json& jobs) {
  std::string text;
  for (const Json& job : jobs) {
    std::string program = job.at("program");
    std::ranges::replace_if(
        program, [](char c) { return static_cast<unsigned char>(c) < ' '; }, '?');
    const Json& rows = job.at("ranks_here");
    const std::string world = job.at("world");
    text += text.empty() ? "" : "\n";
    text += program + (world.empty() ? "" : ", world " + world) + ": " +
            std::to_string(rows.size()) + " of " + job.at("ranks").dump() + " ranks on " +
            job.at("host").get<std::string>() + ", " + job.at("hosts").dump() +
            (job.at("hosts") == 1 ? " host" : " hosts") + " in all; backends:";
    for (const auto& [device, backend] : job.at("backends").items()) {
      if (!backend.get<std::string>().empty())
        text += " " + device + "=" + backend.get<std::string>();
    }
    text += formatted("\n  steps/s %.2f   samples/s %.1f   MB/s %.1f   exposed %.1f %%\n",
                      number(job, "steps_per_s"), number(job, "samples_per_s"),
                      number(job, "bytes_per_s") / kMega, 100 * number(job, "exposed"));
    if (job.contains("late")) {
      text +=
          formatted("  late: rank %d, for which others wait %.1f %% of the time\n",
                    job.at("late").at("rank").get<int>(), 100 * number(job.at("late"), "waited"));
    }
    const std::vector<Column> columns = gpu_columns(rows);
    text += formatted("  %6s %8s %8s %12s %12s %12s %9s", "rank", "pid", "cores", "memory MB",
                      "host in MB/s", "out MB/s", "exposed");
    for (const Column& column : columns) text += formatted(" %10s", column.title);
    text += "\n";
    for (const Json& row : rows) {
      text += formatted(
          "  %6d %8d %8.2f %12.1f %12.1f %12.1f %7.1f %%", row.at("rank").get<int>(),
          row.at("pid").get<int>(), number(row, "cpu_cores"), number(row, "resident_bytes") / kMega,
          number(row, "network_received_bytes_per_s") / kMega,
          number(row, "network_sent_bytes_per_s") / kMega, 100 * number(row, "exposed"));
      for (const Column& column : columns) {
        text += row.contains(column.key)
                    ? formatted(" %10.1f", number(row, column.key) / column.unit)
                    : formatted(" %10s", "-");
      }
      text += "\n";
    }
  }
  return text;
}

}  // namespace ronde::tool::top
