// SPDX-License-Identifier: Apache-2.0
#include "observe/profile.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "core/src/base/fmt.h"
#include "observe/base/figures_json.h"
#include "ronde/build_info.h"

namespace ronde {
namespace {

using Json = nlohmann::ordered_json;

Figures merged(const Profile& profile) {
  Figures all;
  for (const Profile::OfRank& one : profile.ranks) all.merge(one.figures);
  return all;
}

/// Sizes as the EDSR study groups them.
struct Group {
  std::string_view name;
  int last_exponent;
};
constexpr std::array<Group, 5> kGroups = {{{"to 128 KiB", 17},
                                           {"128 KiB-16 MiB", 24},
                                           {"16-32 MiB", 25},
                                           {"32-64 MiB", 26},
                                           {"above 64 MiB", 64}}};

double ms_of(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-6;
}

void print_messages(const Figures& figures, std::size_t ranks,
                    std::back_insert_iterator<std::string> out) {
  fmt::format_to(out, "  {:<16}{:>10}{:>12}{:>12}{:>11}{:>11}{:>12}\n", "messages", "count", "MiB",
                 "total ms", "p50 us", "p99 us", "waited ms");
  int first = 0;
  for (const Group& group : kGroups) {
    MessageFigures messages;
    for (const auto& [exponent, figures_of_size] : figures.messages) {
      if (exponent >= first && exponent <= group.last_exponent) messages.merge(figures_of_size);
    }
    first = group.last_exponent + 1;
    if (messages.count == 0) continue;
    const Distribution& communicate = messages.phase(Phase::Communicate);
    const auto each = static_cast<double>(ranks);
    fmt::format_to(out, "  {:<16}{:>10.0f}{:>12.1f}{:>12.1f}{:>11.1f}{:>11.1f}{:>12.1f}\n",
                   group.name, static_cast<double>(messages.count) / each,
                   static_cast<double>(messages.bytes) / each / (1 << 20),
                   ms_of(communicate.total_ns()) / each,
                   static_cast<double>(communicate.quantile_ns(0.5)) * 1e-3,
                   static_cast<double>(communicate.quantile_ns(0.99)) * 1e-3,
                   ms_of(messages.phase(Phase::Negotiate).total_ns()) / each);
  }
}

/// With what RONDE_AUTOTUNE had changed when the figures of the first rank were taken.
Config config_in_force(const Profile& profile, const Runtime& runtime) {
  Config config = runtime.config();
  for (const StatsGroup& group : profile.ranks.front().figures.counters) {
    if (group.part != "tuning") continue;
    for (const auto& [name, value] : group.counters) {
      if (name == "fusion_bytes") config.fusion_bytes = value;
      if (name == "cycle_time_us") config.cycle_time_ms = static_cast<double>(value) / 1e3;
      if (name == "freeze_after_steps") config.freeze_after_steps = value;
    }
  }
  return config;
}

}  // namespace

Json to_json(const Profile& profile, const Runtime& runtime) {
  const Topology& topology = runtime.topology();
  Json json = {{"ronde_profile", 1},
               {"version", build_info::kVersion},
               {"world", runtime.world_name()},
               {"ranks", topology.size},
               {"hosts", topology.hosts()},
               {"complete", profile.failure.empty()}};
  if (!profile.failure.empty()) json["failure"] = profile.failure;
  Json& missing = json["missing_ranks"] = Json::array();
  for (int rank = 0; rank < topology.size; ++rank) {
    if (std::ranges::find(profile.ranks, rank, &Profile::OfRank::rank) == profile.ranks.end()) {
      missing.push_back(rank);
    }
  }
  Json& config = json["config"] = Json::object();
  const Config in_force = config_in_force(profile, runtime);
  for (const ConfigEntry& entry : config_table()) config[entry.name] = entry.get(in_force);
  json["backends"] = {{"cpu", runtime.backend_name(DeviceKind::Cpu)},
                      {"cuda", runtime.backend_name(DeviceKind::Cuda)}};
  json["merged"] = to_json(merged(profile), -1);
  Json& ranks = json["per_rank"] = Json::array();
  for (const Profile::OfRank& one : profile.ranks) ranks.push_back(to_json(one.figures, one.rank));
  return json;
}

std::string summary(const Profile& profile, const Runtime& runtime) {
  const Figures all = merged(profile);
  const std::size_t ranks = std::max<std::size_t>(profile.ranks.size(), 1);
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "ronde profile{}: {} of {} ranks, {:.1f} s; a rank on average:\n",
                 runtime.world_name().empty() ? "" : " of " + runtime.world_name(),
                 profile.ranks.size(), runtime.topology().size, all.seconds);
  if (!profile.failure.empty()) fmt::format_to(out, "  the group failed: {}\n", profile.failure);
  print_messages(all, ranks, out);
  if (all.step_time.count() > 0) {
    const auto total = static_cast<double>(all.step_time.total_ns());
    fmt::format_to(out,
                   "  steps: {}, p50 {:.1f} ms; exposed communication: {:.1f} % of their time\n",
                   all.steps, ms_of(all.step_time.quantile_ns(0.5)),
                   total > 0 ? 100 * static_cast<double>(all.exposed.total_ns()) / total : 0.0);
  }
  const auto others = static_cast<double>(std::max<std::size_t>(ranks - 1, 1));
  for (const auto& [rank, last] : all.last_ranks) {
    if (rank < 0) continue;  // it is not known which of a host's
    fmt::format_to(out, "  rank {} came last {} times; each other rank lost {:.1f} ms to it\n",
                   rank, last.count / ranks, ms_of(last.lost_ns) / others);
  }
  if (all.lost_events > 0) {
    fmt::format_to(out, "  {} of {} events were lost: raise RONDE_EVENTS\n", all.lost_events,
                   all.events);
  }
  text += "  more, and what to change: RONDE_PROFILE=FILE.json and ronde prof report FILE.json\n";
  return text;
}

}  // namespace ronde
