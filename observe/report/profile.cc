// SPDX-License-Identifier: Apache-2.0
#include "observe/report/profile.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "observe/base/figures_json.h"
#include "ronde/config.h"
#include "ronde/error.h"

namespace ronde {
namespace {

using Json = nlohmann::ordered_json;
using Texts = std::map<std::string, std::string>;

/// The figures that runs of any framework have.
Json run_report(const Profile& profile) {
  const Figures& all = profile.merged;
  const auto seconds = [&](const Distribution& times) {
    return static_cast<double>(times.total_ns()) * 1e-9 / profile.measured_ranks();
  };
  return {{"framework", profile.framework},
          {"ranks", profile.ranks},
          {"steps",
           std::llround(static_cast<double>(all.step_time.count()) / profile.measured_ranks())},
          {"samples", all.timed_samples},
          {"seconds", seconds(all.step_time)},
          {"waiting_s", seconds(all.exposed)},
          {"peak_bytes", all.peak_bytes},
          {"series", series_json(all.series)}};
}

}  // namespace

void Profile::add(int rank, Figures figures) {
  merged.merge(figures);
  per_rank.insert_or_assign(rank, std::move(figures));
}

std::vector<int> Profile::missing_ranks() const {
  std::vector<int> missing;
  for (int rank = 0; rank < ranks; ++rank) {
    if (!per_rank.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

double Profile::counter(const std::string& part, const std::string& name) const {
  double sum = 0;
  for (const StatsGroup& group : merged.counters) {
    if (group.part != part && !group.part.starts_with(part + " of set ")) continue;
    for (const auto& [counter, value] : group.counters) {
      if (counter == name) sum += static_cast<double>(value);
    }
  }
  return sum;
}

std::string Profile::setting(const std::string& name) const {
  const auto found = config.find(name);
  return found == config.end() ? "" : found->second;
}

double Profile::fusion_bytes() const {
  const std::string bytes = setting("RONDE_FUSION_BYTES");
  return bytes.empty() ? -1 : static_cast<double>(parse_bytes(bytes));
}

Json to_json(const Profile& profile) {
  Json json = {{"ronde_profile", kProfileLayout}, {"version", profile.version}};
  if (profile.missing_ranks().empty()) json["run_report"] = run_report(profile);
  json.update({{"world", profile.world},
               {"ranks", profile.ranks},
               {"hosts", profile.hosts},
               {"complete", profile.failure.empty()},
               {"missing_ranks", profile.missing_ranks()},
               {"config", profile.config},
               {"backends", profile.backends},
               {"merged", to_json(profile.merged, -1)},
               {"per_rank", Json::array()}});
  if (!profile.failure.empty()) json["failure"] = profile.failure;
  for (const auto& [rank, figures] : profile.per_rank) {
    json["per_rank"].push_back(to_json(figures, rank));
  }
  return json;
}

Profile profile_from_report(const Json& json) {
  Profile profile;
  profile.framework = json.at("framework");
  profile.ranks = rank_from_json(json.at("ranks"));
  Figures all;
  all.steps = count_from_json(json.at("steps"));
  all.timed_samples = all.samples = count_from_json(json.at("samples"));
  all.peak_bytes = count_from_json(json.value("peak_bytes", Json(0U)));
  all.seconds = json.at("seconds");
  const double waiting_s = json.value("waiting_s", 0.0);
  if (profile.ranks < 1 || all.steps < 1 || !(all.seconds > 0 && all.seconds < 1e9)) {
    throw Error("\"ranks\", \"steps\" and \"seconds\" have to be positive");
  }
  if (!(waiting_s >= 0 && waiting_s <= all.seconds)) {
    throw Error("\"waiting_s\" has to lie within \"seconds\"");
  }
  const auto equal_times = [&](double seconds) {
    const std::int64_t ns = std::llround(seconds * 1e9);
    const std::int64_t of_step = ns / static_cast<std::int64_t>(all.steps);
    return Distribution::from(ns, of_step, {{of_step, all.steps}});
  };
  all.step_time = equal_times(all.seconds);
  if (json.contains("waiting_s")) all.exposed = equal_times(waiting_s);
  all.series = series_from_json(json.value("series", Json::object()));
  profile.add(0, std::move(all));
  return profile;
}

Profile profile_from_json(const Json& json) {
  Profile profile;
  profile.version = json.at("version");
  profile.world = json.at("world");
  profile.ranks = std::max(1, rank_from_json(json.at("ranks")));
  profile.hosts = rank_from_json(json.at("hosts"));
  profile.failure = json.value("failure", "");
  profile.config = json.at("config").get<Texts>();
  profile.backends = json.at("backends").get<Texts>();
  for (const Json& figures : json.at("per_rank")) {
    profile.add(rank_from_json(figures.at("rank")), figures_from_json(figures));
  }
  if (profile.per_rank.empty()) throw Error("it has the figures of no rank");
  return profile;
}

}  // namespace ronde
