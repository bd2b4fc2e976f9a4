// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string_view>

#include "ronde/config.h"
#include "ronde/error.h"

namespace ronde {
namespace {

constexpr std::string_view kOwnPrefix = "RONDE_";
constexpr std::string_view kHorovodPrefix = "HOROVOD_";
constexpr const char* kDefault = "default";  ///< the source of an unset variable

// Read by Ronde's own scripts, tests and Python package, or set by `ronde run`; no settings of the
// library.
constexpr std::array<std::string_view, 16> kScriptNames = {
    "RONDE_BUILD",   "RONDE_FAR_LINK",     "RONDE_HOSTS",         "RONDE_JOBS",
    "RONDE_LIBRARY", "RONDE_LINK_BETWEEN", "RONDE_LINK_DELAY_MS", "RONDE_LINK_RATE",
    "RONDE_MINUTES", "RONDE_MPIEXEC",      "RONDE_PYTHON",        "RONDE_RANKS",
    "RONDE_RESTART", "RONDE_RUN_BOARD",    "RONDE_RUN_CHANNEL",   "RONDE_VENV"};
constexpr std::string_view kTestPrefix = "RONDE_TEST_";

/// A value of Horovod's variable that has another text in Ronde. Other values are the same.
struct AliasValue {
  std::string_view alias;
  std::string_view theirs;  ///< in small letters; Horovod reads any
  std::string_view ours;
};
constexpr std::array<AliasValue, 5> kAliasValues = {
    {{"HOROVOD_LOG_LEVEL", "fatal", "error"},
     {"HOROVOD_CPU_OPERATIONS", "mpi", "mpi"},
     {"HOROVOD_CPU_OPERATIONS", "gloo", "auto"},
     {"HOROVOD_CPU_OPERATIONS", "ccl", "auto"},
     {"HOROVOD_TIMELINE", "dynamic", ""}}};  // start_timeline() names the file

std::string_view alias_value(std::string_view alias, std::string_view text) {
  const auto equal = [](unsigned char a, unsigned char b) { return std::tolower(a) == b; };
  for (const AliasValue& value : kAliasValues) {
    if (value.alias == alias && std::ranges::equal(text, value.theirs, equal)) return value.ours;
  }
  return text;
}

/// Returns the number of single-character insertions, deletions and substitutions from `a` to `b`
/// (Levenshtein 1966; the two-row form of Wagner and Fischer 1974.)
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];  // distance of a[0, i) to b[0, j)
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string nearest_name(std::string_view unknown) {
  std::size_t least = std::numeric_limits<std::size_t>::max();
  std::string nearest;
  const auto consider = [&](const std::string& candidate, const std::string& name) {
    const std::size_t distance = edit_distance(unknown, candidate);
    if (distance < least) nearest = name;
    least = std::min(least, distance);
  };
  for (const ConfigEntry& entry : config_table()) {
    consider(entry.name, entry.name);
    if (!entry.horovod_alias.empty()) {  // RONDE_FUSION_THRESHOLD means RONDE_FUSION_BYTES
      consider(std::string(kOwnPrefix) + entry.horovod_alias.substr(kHorovodPrefix.size()),
               entry.name);
    }
  }
  return nearest;
}

bool is_known(std::string_view name) {
  const auto is_read = [name](const ConfigEntry& entry) {
    return entry.name == name || entry.horovod_alias == name;
  };
  const auto& table = config_table();
  return std::ranges::any_of(table, is_read) || name.starts_with(kTestPrefix) ||
         std::ranges::find(kScriptNames, name) != kScriptNames.end();
}

std::vector<std::string> unknown_name_warnings(std::vector<std::string> names) {
  std::ranges::sort(names);
  std::vector<std::string> warnings;
  std::string of_horovod;
  for (const std::string& name : names) {
    if (is_known(name)) continue;
    if (name == "RONDE_NCCL_STREAMS") {
      warnings.push_back(name + " has no effect: NCCL has one stream for each process set");
    } else if (name.starts_with(kOwnPrefix)) {
      warnings.push_back(name + " is not a variable of Ronde and does nothing; did you mean " +
                         nearest_name(name) + "? `ronde info` lists all of them");
    } else if (name.starts_with(kHorovodPrefix)) {
      of_horovod += (of_horovod.empty() ? "" : ", ") + name;
    }
  }
  if (!of_horovod.empty()) {
    warnings.push_back("Ronde does not read " + of_horovod +
                       ": docs/coming_from_horovod.md says what to set instead");
  }
  return warnings;
}

/// Returns the source of the value.
std::string load_entry(LoadedConfig& loaded, const ConfigEntry& entry,
                       const EnvironmentLookup& lookup) {
  for (const std::string& variable : {entry.name, entry.horovod_alias}) {
    const auto text = variable.empty() ? std::nullopt : lookup(variable);
    if (!text) continue;
    try {
      entry.set(loaded.config, alias_value(variable, *text));
    } catch (const UsageError& error) {
      throw UsageError(variable + ": " + error.what());
    }
    return variable;
  }
  return kDefault;
}

/// Adjusts the default of one stall limit if the other alone is set by Horovod's variable, as
/// Horovod's limits have other defaults.
void reconcile_stall_limits(LoadedConfig& loaded) {
  Config& config = loaded.config;
  if (config.stall_abort_s == 0 || config.stall_abort_s >= config.stall_warn_s) return;
  const auto source_of = [&](std::string_view name) -> std::string_view {
    return std::ranges::find(loaded.sources, name, &ConfigSource::name)->source;
  };
  const auto warn = source_of("RONDE_STALL_WARN_S"), abort = source_of("RONDE_STALL_ABORT_S");
  if (abort == kDefault && warn.starts_with(kHorovodPrefix)) config.stall_abort_s = 0;
  if (warn == kDefault && abort.starts_with(kHorovodPrefix)) {
    config.stall_warn_s = config.stall_abort_s;
  }
}

}  // namespace

EnvironmentLookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  };
}

LoadedConfig load_config(const EnvironmentLookup& lookup, const std::vector<std::string>& names) {
  LoadedConfig loaded;
  loaded.warnings = unknown_name_warnings(names);
  for (const ConfigEntry& entry : config_table()) {
    loaded.sources.push_back({entry.name, "", load_entry(loaded, entry, lookup)});
  }
  reconcile_stall_limits(loaded);
  for (std::size_t i = 0; i < loaded.sources.size(); ++i) {
    loaded.sources[i].value = config_table()[i].get(loaded.config);
  }
  check_config(loaded.config);
  return loaded;
}

LoadedConfig load_config_from_environment() {
  std::vector<std::string> names;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return load_config(process_environment(), names);
}

std::string describe(const LoadedConfig& loaded) {
  std::string text;
  for (std::size_t i = 0; i < loaded.sources.size(); ++i) {
    const auto& [name, value, source] = loaded.sources[i];
    if (value == config_table().at(i).get(Config())) continue;
    text += text.empty() ? "settings that differ from their defaults: " : ", ";
    text += name + "=" + value + (source == name ? "" : " (" + source + ")");
  }
  return text;
}

}  // namespace ronde
