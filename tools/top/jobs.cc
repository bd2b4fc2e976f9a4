// SPDX-License-Identifier: Apache-2.0
#include "tools/top/jobs.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>

namespace ronde::tool::top {
namespace {

using Json = nlohmann::ordered_json;

/// Rates cover so many polls, so that they are steady also where steps are slow.
constexpr std::size_t kPolls = 6;
constexpr double kNsPerS = 1e9;
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

/// Groups ranks by launcher, program and world; a rank that comes twice belongs to another job.
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

std::uint64_t bytes_in(const Figures& figures) {
  std::uint64_t bytes = 0;
  for (const auto& [exponent, messages] : figures.messages) bytes += messages.bytes;
  return bytes;
}

double number(const Json& json, const char* key) {
  return json.at(key).get<double>();
}

/// The columns for which a rank has a value.
std::vector<Column> gpu_columns(const Json& rows) {
  std::vector<Column> columns;
  std::ranges::copy_if(kGpuColumns, std::back_inserter(columns), [&](const Column& column) {
    return std::ranges::any_of(rows, [&](const Json& row) { return row.contains(column.key); });
  });
  return columns;
}

}  // namespace

Jobs::Recent Jobs::recent_of(const Json& rank) {
  Figures now = figures_from_json(rank.at("figures"));
  std::deque<Figures>& history =
      histories_[{rank.at("pid"), rank.value("world", ""), rank.at("rank")}];
  if (!history.empty() && now.seconds < history.back().seconds) history.clear();
  Figures before = history.empty() ? Figures() : history.front();
  history.push_back(now);
  if (history.size() >= kPolls) history.pop_front();
  return {std::move(now), std::move(before)};
}

Json Jobs::job_of(const std::vector<Json>& ranks) {
  const Json& first = ranks.front();
  Json job;
  job["world"] = first.value("world", "");
  for (const char* const key : {"program", "host", "ranks", "hosts", "backends"}) {
    job[key] = first.at(key);
  }
  Json rows = Json::array();
  double steps_per_s = 0, samples_per_s = 0, bytes_per_s = 0, longest_s = 0;
  double exposed_ns = 0, step_ns = 0;
  std::map<int, double> waited_ns;
  for (const Json& rank : ranks) {
    const Recent recent = recent_of(rank);
    const Figures &now = recent.first, &before = recent.second;
    const double seconds = now.seconds - before.seconds;
    const auto change = [&](auto value) {
      return static_cast<double>(value(now)) - static_cast<double>(value(before));
    };
    const double exposed = change([](const Figures& each) { return each.exposed.total_ns(); });
    const double in_steps = change([](const Figures& each) { return each.step_time.total_ns(); });
    steps_per_s = std::max(steps_per_s,
                           ratio(change([](const Figures& each) { return each.steps; }), seconds));
    samples_per_s += ratio(change([](const Figures& each) { return each.samples; }), seconds);
    bytes_per_s += ratio(change(&bytes_in), seconds);
    longest_s = std::max(longest_s, seconds);
    exposed_ns += exposed;
    step_ns += in_steps;
    for (const auto& [late, last] : now.last_ranks) {
      const auto known = before.last_ranks.find(late);
      const std::int64_t lost_ns =
          last.lost_ns - (known == before.last_ranks.end() ? 0 : known->second.lost_ns);
      if (late >= 0) waited_ns[late] += static_cast<double>(lost_ns);
    }
    Json& row = rows.emplace_back(rank.at("system"));
    row["rank"] = rank.at("rank");
    row["pid"] = rank.at("pid");
    row["exposed"] = ratio(exposed, in_steps);
  }
  job["steps_per_s"] = steps_per_s;
  job["samples_per_s"] = samples_per_s;
  job["bytes_per_s"] = bytes_per_s;
  job["exposed"] = ratio(exposed_ns, step_ns);
  const auto latest =
      std::ranges::max_element(waited_ns, {}, [](const auto& waited) { return waited.second; });
  if (latest != waited_ns.end() && latest->second > 0) {
    const auto others = static_cast<double>(std::max<std::size_t>(ranks.size() - 1, 1));
    job["late"] = {{"rank", latest->first},
                   {"waited", ratio(latest->second / kNsPerS, longest_s * others)}};
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
