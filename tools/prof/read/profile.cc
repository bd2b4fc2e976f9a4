// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <utility>

#include "ronde/error.h"
#include "tools/prof/read/trace.h"

namespace ronde::prof {
namespace {

Profile parse_profile(const fs::path& path) {
  const Json json = parse_json(read_file(path), path);
  if (json.contains("ronde_dump")) {
    throw UsageError(path.string() + " is a flight recorder's dump: read it with ronde prof hang " +
                     path.parent_path().string());
  }
  if (json.contains("traceEvents")) {
    throw UsageError(path.string() + " is a file of a timeline: give its folder");
  }
  const bool is_report = !json.contains("ronde_profile") && json.contains("run_report");
  if (!is_report && !json.contains("ronde_profile")) {
    throw UsageError(path.string() + " is no profile: it has no member ronde_profile");
  }
  if (!is_report) check_layout(json.at("ronde_profile"), kProfileLayout, path);
  try {
    Profile run = is_report ? profile_from_report(json.at("run_report")) : profile_from_json(json);
    run.source = path.string();
    return run;
  } catch (const std::exception& error) {
    throw UsageError(path.string() + " is no profile that this ronde can read: " + error.what());
  }
}

/// Joins the files that the ranks of a failed run left.
Profile join(const fs::path& name, const std::vector<fs::path>& files) {
  Profile all = parse_profile(files.front());
  for (const fs::path& file : files) {
    if (&file == &files.front()) continue;
    Profile run = parse_profile(file);
    if (run.ranks != all.ranks) {
      throw UsageError(file.string() + " is of " + std::to_string(run.ranks) +
                       " ranks, and the others of " + std::to_string(all.ranks) +
                       ": remove the files of an earlier run");
    }
    for (auto& [rank, figures] : run.per_rank) all.add(rank, std::move(figures));
    if (all.failure.empty()) all.failure = run.failure;
  }
  all.source = fs::path(name).replace_extension().string() + ".rank*.json";
  return all;
}

/// "NAME.json" for "NAME.rank<r>.json".
fs::path without_rank(const fs::path& path) {
  static const std::regex pattern("\\.rank\\d+\\.json$");
  return std::regex_replace(path.string(), pattern, ".json");
}

Profile timeline_run(const fs::path& folder) {
  Profile run;
  run.source = folder.string();
  std::set<std::string> hosts;
  std::vector<TraceHead> heads = read_heads(folder);
  run.remarks = trace_remarks(heads);
  for (TraceHead& head : heads) {
    if (!head.version.empty()) run.version = head.version;
    run.ranks = std::max({run.ranks, head.world_size, head.rank + 1});
    hosts.insert(head.host);
    if (head.figures) {
      run.add(head.rank, std::move(*head.figures));
    } else {
      run.remarks.push_back(
          "rank " + std::to_string(head.rank) +
          (head.figures_problem.empty()
               ? "'s file has no figures, which a rank writes at its end: it was killed, or still "
                 "runs"
               : "'s figures cannot be read: " + head.figures_problem));
    }
  }
  if (run.per_rank.empty()) {
    throw UsageError("the timeline in " + folder.string() +
                     " has no figures, which ranks write at their end: they were killed, or still "
                     "run. ronde prof merge shows their events");
  }
  run.hosts = static_cast<int>(hosts.size());
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

/// Reads the run whose profile has this name: a file of the whole run, or one of each rank if it
/// failed. If both exist, the newer one belongs to the latest run.
Profile newest(const fs::path& name, const std::vector<fs::path>& of_ranks) {
  std::error_code error;
  const bool is_whole = fs::exists(name, error);
  if (of_ranks.empty()) return parse_profile(name);
  if (!is_whole) return join(name, of_ranks);
  const fs::path& last = *std::ranges::max_element(
      of_ranks, {}, [&](const fs::path& path) { return fs::last_write_time(path, error); });
  const bool failed = fs::last_write_time(name, error) < fs::last_write_time(last, error);
  Profile run = failed ? join(name, of_ranks) : parse_profile(name);
  run.remarks.push_back((failed ? name : last).string() + " is older than " +
                        (failed ? last : name).string() +
                        ": it is of an earlier run, and left out");
  return run;
}

/// The profiles in `files`, where those of the ranks of one failed run are one.
std::vector<Profile> group(const std::vector<fs::path>& files) {
  std::map<fs::path, std::vector<fs::path>> names;
  for (const fs::path& file : files) {
    std::vector<fs::path>& of_ranks = names[without_rank(file)];
    if (rank_in_name(file) >= 0) of_ranks.push_back(file);
  }
  std::vector<Profile> runs;
  for (const auto& [name, of_ranks] : names) runs.push_back(newest(name, of_ranks));
  return runs;
}

}  // namespace

std::vector<Profile> read_runs(const fs::path& path) {
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

Profile read_run(const fs::path& path) {
  std::vector<Profile> runs = read_runs(path);
  if (runs.size() == 1) return std::move(runs.front());
  std::string names;
  for (const Profile& run : runs) names += " " + run.source;
  throw UsageError("folder " + path.string() + " holds several runs, give one of them:" + names);
}

}  // namespace ronde::prof
