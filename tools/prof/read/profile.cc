// SPDX-License-Identifier: Apache-2.0
#include "tools/prof/read/profile.h"

#include <algorithm>
#include <regex>
#include <set>
#include <utility>

#include "ronde/config.h"
#include "ronde/error.h"
#include "tools/prof/base/text.h"
#include "tools/prof/read/trace.h"

namespace ronde::prof {
namespace {

constexpr int kLayout = 1;

std::map<std::string, std::string> texts_in(const Json& json) {
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : json.items()) {
    texts[name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return texts;
}

Run parse_profile(const fs::path& path) try {
  const Json json = parse_json(read_file(path), path);
  if (json.contains("ronde_dump")) {
    throw UsageError(path.string() + " is a flight recorder's dump: read it with ronde prof hang " +
                     path.parent_path().string());
  }
  if (json.contains("traceEvents")) {
    throw UsageError(path.string() + " is a file of a timeline: give its folder");
  }
  if (!json.is_object() || !json.contains("ronde_profile")) {
    throw UsageError(path.string() + " is no profile: it has no member ronde_profile");
  }
  check_layout(json.at("ronde_profile"), kLayout, path);
  Run run;
  run.source = path.string();
  run.version = json.value("version", "");
  run.ranks = std::max(1, ranks_in(json, "ranks", path));
  run.hosts = json.value("hosts", 1);
  run.failure = json.value("failure", "");
  run.missing_ranks = json.value("missing_ranks", std::vector<int>());
  run.config = texts_in(json.value("config", Json::object()));
  run.backends = texts_in(json.value("backends", Json::object()));
  if (json.contains("per_rank")) {
    for (const Json& each : json.at("per_rank")) {
      if (each.is_object()) run.per_rank.push_back(parse_figures(each, path));
    }
  }
  run.merged = json.contains("merged") ? parse_figures(json.at("merged"), path)
                                       : merge_figures(run.per_rank);
  if (run.merged.counters.empty()) run.merged.counters = merge_figures(run.per_rank).counters;
  if (run.merged.counter("tuning", "changes") > 0) {
    run.remarks.emplace_back(
        "the run tuned itself: settings are those at its end, and figures of all that it tried");
  }
  return run;
} catch (const Json::exception& error) {
  throw UsageError(path.string() + " is no profile that this ronde can read: " + error.what());
}

/// The run whose ranks each left a file.
Run join(const fs::path& name, const std::vector<fs::path>& files) {
  Run all;
  std::set<int> found;
  for (const fs::path& file : files) {
    Run run = parse_profile(file);
    Figures figures = run.per_rank.size() == 1 ? run.per_rank.front() : run.merged;
    figures.rank = rank_in_name(file);
    found.insert(figures.rank);
    if (all.per_rank.empty()) {
      all = std::move(run);
      all.per_rank.clear();
    } else if (run.ranks != all.ranks) {
      throw UsageError(file.string() + " is of " + std::to_string(run.ranks) +
                       " ranks, and the others of " + std::to_string(all.ranks) +
                       ": remove the files of an earlier run");
    }
    if (all.failure.empty()) all.failure = run.failure;
    all.per_rank.push_back(std::move(figures));
  }
  all.source = name.string() + ".rank*.json";
  all.merged = merge_figures(all.per_rank);
  all.missing_ranks.clear();
  for (int rank = 0; rank < all.ranks; ++rank) {
    if (!found.contains(rank)) all.missing_ranks.push_back(rank);
  }
  if (all.failure.empty()) all.failure = "no rank says why";
  return all;
}

/// FILE of FILE.rank<r>.json, or of NAME.rank<r>.json for NAME.json.
fs::path without_rank(const fs::path& path) {
  static const std::regex pattern("(\\.json)?\\.rank\\d+\\.json$");
  return std::regex_replace(path.string(), pattern, ".json");
}

Run timeline_run(const fs::path& folder) {
  Run run;
  run.source = folder.string();
  std::vector<TraceHead> heads;
  std::set<std::string> hosts;
  for (const fs::path& file : trace_files(folder)) {
    TraceHead head;
    run.per_rank.push_back(trace_figures(file, head));
    if (!head.version.empty()) run.version = head.version;
    run.ranks = std::max({run.ranks, head.world_size, head.rank + 1});
    hosts.insert(head.host);
    heads.push_back(std::move(head));
  }
  run.remarks = trace_remarks(heads);
  run.hosts = static_cast<int>(hosts.size());
  run.merged = merge_figures(run.per_rank);
  return run;
}

bool is_timeline(const fs::path& file) {
  return rank_in_name(file) >= 0 && file.filename().string().starts_with("rank");
}

bool is_dump(const fs::path& file) {
  constexpr std::size_t kEnough = 100;
  std::string start(kEnough, '\0');
  std::ifstream(file).read(start.data(), kEnough);
  return start.find("\"ronde_dump\"") != std::string::npos;
}

/// The run whose profile has this name: a file of the whole run, or one of each rank if it failed.
/// Of both the newer is of the latest run.
Run newest(const fs::path& name, const std::vector<fs::path>& of_ranks) {
  std::error_code error;
  const bool is_whole = fs::exists(name, error);
  if (of_ranks.empty()) return parse_profile(name);
  if (!is_whole) return join(name, of_ranks);
  const fs::path& last = *std::ranges::max_element(
      of_ranks, {}, [&](const fs::path& path) { return fs::last_write_time(path, error); });
  const bool failed = fs::last_write_time(name, error) < fs::last_write_time(last, error);
  Run run = failed ? join(name, of_ranks) : parse_profile(name);
  run.remarks.push_back((failed ? name : last).string() + " is older than " +
                        (failed ? last : name).string() +
                        ": it is of an earlier run, and left out");
  return run;
}

/// The profiles in `files`, where those of the ranks of one failed run are one.
std::vector<Run> group(const std::vector<fs::path>& files) {
  std::map<fs::path, std::vector<fs::path>> names;
  for (const fs::path& file : files) {
    std::vector<fs::path>& of_ranks = names[without_rank(file)];
    if (rank_in_name(file) >= 0) of_ranks.push_back(file);
  }
  std::vector<Run> runs;
  for (const auto& [name, of_ranks] : names) runs.push_back(newest(name, of_ranks));
  return runs;
}

}  // namespace

double Run::fusion_bytes() const {
  const auto found = config.find("RONDE_FUSION_BYTES");
  if (found == config.end()) return -1;
  return static_cast<double>(parse_bytes(found->second));
}

std::vector<Run> read_runs(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    const std::vector<fs::path> files =
        json_files(path, "a profile of RONDE_PROFILE or a timeline of RONDE_TIMELINE");
    const auto first = std::ranges::find_if(files, is_timeline);
    if (first != files.end() && is_dump(*first)) {
      throw UsageError("folder " + path.string() +
                       " holds a flight recorder's dumps: read it with ronde prof hang " +
                       path.string());
    }
    if (first != files.end()) return {timeline_run(path)};
    return group(files);
  }
  const bool is_of_rank = rank_in_name(path) >= 0;
  if (is_of_rank && fs::exists(path, error)) return {parse_profile(path)};
  std::vector<fs::path> members;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path& file = entry->path();
    if (rank_in_name(file) >= 0 && without_rank(file).filename() == path.filename()) {
      members.push_back(file);
    }
  }
  std::ranges::sort(members, {}, rank_in_name);
  if (members.empty() && !fs::exists(path, error)) {
    throw UsageError(path.string() + " does not exist");
  }
  return {newest(path, members)};
}

Run read_run(const fs::path& path) {
  std::vector<Run> runs = read_runs(path);
  if (runs.size() == 1) return std::move(runs.front());
  std::string names;
  for (const Run& run : runs) names += " " + run.source;
  throw UsageError("folder " + path.string() + " holds several runs, give one of them:" + names);
}

}  // namespace ronde::prof
