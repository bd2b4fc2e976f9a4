// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ronde {

/// Everything a user can tune, with its default. `config_table()` is the one list of the variables
/// behind it; docs/tuning.md is generated from that list.
struct Config {
  std::uint64_t fusion_bytes = std::uint64_t{64} << 20;
  double cycle_time_ms = 1.0;
  std::uint64_t cache_capacity = 1024;
  std::string cpu_backend = "auto";
  double stall_warn_s = 30.0;
  double stall_abort_s = 600.0;
  double init_timeout_s = 120.0;
  double shutdown_timeout_s = 30.0;
  std::string log_level = "info";
  std::uint64_t compute_threads = 0;
  std::string thread_affinity;
};

/// Whether all ranks must hold the same value (compared in init) or each may have its own.
enum class ConfigScope { GroupWide, PerRank };

/// One variable. `set` parses strictly and throws UsageError quoting the bad text.
struct ConfigEntry {
  std::string name;          ///< "RONDE_FUSION_BYTES"
  std::string horovod_twin;  ///< "HOROVOD_FUSION_THRESHOLD", or empty
  std::string unit;          ///< "bytes", "ms", "s", "threads", or empty
  std::string text;          ///< one or two sentences for the manual
  ConfigScope scope = ConfigScope::GroupWide;
  std::function<void(Config&, std::string_view)> set;
  std::function<std::string(const Config&)> get;  ///< canonical text, parses back to the same value
};

/// Every variable, in the order of the manual.
const std::vector<ConfigEntry>& config_table();

/// Where a value came from: "default", "RONDE_FUSION_BYTES" or "HOROVOD_FUSION_THRESHOLD".
struct ConfigSource {
  std::string name;
  std::string value;
  std::string source;
};

/// A configuration and how it came to be.
struct LoadedConfig {
  Config config;
  std::vector<ConfigSource> sources;  ///< one a table entry, in its order
  std::vector<std::string> warnings;  ///< unknown RONDE_* names, with the nearest known one
};

/// Looks a variable up: nullopt if unset.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Reads the configuration. `names` are all variables that are set (to warn of unknown RONDE_*
/// ones). Throws UsageError naming the variable, its text and what is accepted.
LoadedConfig load_config(const EnvironmentLookup& lookup, const std::vector<std::string>& names);

/// Reads it from this process's environment.
LoadedConfig load_config_from_environment();

/// The group-wide values as "NAME=value" lines, equal on ranks that may work together.
std::string group_wide_fingerprint(const Config& config);

/// Parses "67108864", "64MiB", "64MB" (10^6), "1.5GiB"; throws UsageError.
std::uint64_t parse_bytes(std::string_view text);

/// "64MiB", or plain bytes where no unit divides evenly.
std::string format_bytes(std::uint64_t bytes);

}  // namespace ronde
