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
  /// Each has the variable of its name: fusion_bytes is RONDE_FUSION_BYTES. The text of its entry
  /// in config_table() describes it.
  /// @{
  std::uint64_t fusion_bytes = std::uint64_t{64} << 20;
  double cycle_time_ms = 1.0;
  std::uint64_t cache_capacity = 1024;
  std::uint64_t freeze_after_steps = 3;
  std::string cpu_backend = "auto";
  std::string fabric = "auto";
  std::string allreduce = "auto";
  std::string broadcast = "auto";
  std::string allgather = "auto";
  std::string reducescatter = "auto";
  std::string alltoall = "auto";
  std::string algorithms;
  std::uint64_t symmetric_heap_bytes = std::uint64_t{8} << 30;
  std::string gpu_backend = "auto";
  bool cuda_ipc = true;
  std::uint64_t cuda_ipc_direct_bytes = std::uint64_t{1} << 20;
  bool gpu_aware_mpi = false;
  bool registration_cache = true;
  std::uint64_t registration_cache_bytes = std::uint64_t{16} << 30;
  std::string visible_devices;
  std::string process_sets;
  bool exact = false;
  std::string join_average = "contributing";
  std::string check_replicas = "first";
  bool verify = false;
  bool autotune = false;
  std::string autotune_log;
  std::string tuned;
  double stall_warn_s = 30.0;
  double stall_abort_s = 600.0;
  double init_timeout_s = 120.0;
  double shutdown_timeout_s = 0.0;
  std::string log_level = "info";
  std::uint64_t compute_threads = 0;
  std::string thread_affinity;
  std::string host_id;
  std::uint64_t port = 0;
  std::string port_range;
  std::string job_key;
  std::uint64_t events = 16384;
  std::string profile;
  std::string timeline;
  std::string dump;
  bool dump_on_sigusr2 = false;
  std::string metrics;
  bool top = false;
  /// @}
};

/// Whether all ranks must have the same value (compared in init), or each may have its own.
enum class ConfigScope { GroupWide, PerRank };

/// One variable.
struct ConfigEntry {
  std::string name;                ///< "RONDE_FUSION_BYTES"
  std::string horovod_alias = {};  ///< "HOROVOD_FUSION_THRESHOLD", or empty
  std::string unit = {};           ///< "bytes", "ms", "s", "threads", or empty
  std::string text;                ///< one or two sentences for the manual
  /// Says whether ranks may differ in it.
  ConfigScope scope = ConfigScope::GroupWide;
  /// Parses strictly; throws UsageError quoting the bad text.
  std::function<void(Config&, std::string_view)> set = {};
  /// Canonical text, which parses back to the same value.
  std::function<std::string(const Config&)> get = {};
};

/// Every variable, in the order of the manual.
const std::vector<ConfigEntry>& config_table();

/// Throws UsageError if values that are each well formed make no sense together. load_config calls
/// it; a program that fills in a Config itself should too.
void check_config(const Config& config);

/// The origin of a value.
struct ConfigSource {
  std::string name;    ///< "RONDE_FUSION_BYTES"
  std::string value;   ///< as ConfigEntry::get gives it
  std::string source;  ///< "default", "RONDE_FUSION_BYTES" or "HOROVOD_FUSION_THRESHOLD"
};

/// A configuration and how it came to be.
struct LoadedConfig {
  Config config;                      ///< checked (check_config)
  std::vector<ConfigSource> sources;  ///< one a table entry, in its order
  std::vector<std::string> warnings;  ///< RONDE_* and HOROVOD_* names that are set and not read
};

/// Returns one line with the values that differ from the defaults, "NAME=value", with the source if
/// it has another name; empty if none does. For RuntimeOptions::effective_config.
std::string describe(const LoadedConfig& loaded);

/// Returns the value of a variable; nullopt if unset.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Returns a lookup in the environment of this process.
EnvironmentLookup process_environment();

/// Reads the configuration. `names` are all variables that are set (to warn of RONDE_* and
/// HOROVOD_* ones that are not read). Throws UsageError naming the variable, its text and what is
/// accepted.
LoadedConfig load_config(const EnvironmentLookup& lookup, const std::vector<std::string>& names);

/// Reads it from this process's environment.
LoadedConfig load_config_from_environment();

/// Returns the group-wide values as "NAME=value" lines, equal on ranks that may work together.
std::string group_wide_fingerprint(const Config& config);

/// Returns a short text, equal for equal fingerprints.
std::string config_digest(const std::string& fingerprint);

/// Returns the fingerprint of a rank that cannot start, for the reason `text` (nonsense in its
/// environment, an unknown backend), so that the other ranks report why, instead of waiting for it.
std::string failed_fingerprint(const std::string& text);

/// Compares the fingerprints of all ranks, in rank order. Returns an empty text if they may work
/// together, else that of the UsageError which init throws on every rank: for each variable that
/// differs the value of each rank ("ranks 0-2: 64MiB, rank 3: 32MiB"), or the reasons of the ranks
/// that cannot start.
std::string config_difference(const std::vector<std::string>& fingerprints);

/// Returns the core that RONDE_THREAD_AFFINITY gives to a rank's coordinator thread; nullopt if it
/// is unset. Throws UsageError if the list has fewer than `local_size` entries.
std::optional<int> affinity_core(const Config& config, int local_rank, int local_size);

/// TCP ports from `first` to `last`; any where both are 0.
struct PortRange {
  std::uint16_t first = 0;  ///< the lowest
  std::uint16_t last = 0;   ///< the highest
};

/// Returns the ports of RONDE_PORT_RANGE.
PortRange port_range(const Config& config);

/// Returns the entries of RONDE_VISIBLE_DEVICES.
std::vector<std::string> visible_devices(const Config& config);

/// Returns the number of steps between comparisons of replicas by RONDE_CHECK_REPLICAS; 0: only in
/// the first step, nullopt: never.
std::optional<std::uint64_t> replica_check_period(const Config& config);

/// Returns the ranks of each set of RONDE_PROCESS_SETS.
std::vector<std::vector<int>> static_process_sets(const Config& config);
/// Returns the text of such a list: "0,1;2,3".
std::string format_process_sets(const std::vector<std::vector<int>>& sets);

/// Parses "67108864", "64MiB", "64MB" (10^6), "1.5GiB"; throws UsageError.
std::uint64_t parse_bytes(std::string_view text);

/// Returns "64MiB", or plain bytes where no unit divides evenly.
std::string format_bytes(std::uint64_t bytes);

}  // namespace ronde
