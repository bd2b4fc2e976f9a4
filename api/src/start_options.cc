// SPDX-License-Identifier: Apache-2.0
#include "api/src/start_options.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <utility>

#include "api/src/tuned_file.h"
#include "ronde/config.h"
#include "ronde/error.h"
#include "ronde/log.h"

namespace ronde {
namespace {

constexpr std::string_view kAuto = "auto";
/// How much longer than the longest time-out of an operation RONDE_STALL_ABORT_S is by itself.
constexpr std::chrono::seconds kStallSlack{60};

constexpr std::string_view variable_of(DeviceKind device) noexcept {
  return device == DeviceKind::Cpu ? "RONDE_CPU_BACKEND" : "RONDE_GPU_BACKEND";
}

/// Returns why there is no backend `name` for `device`; empty if there is one.
std::string unknown_backend(const BackendRegistry& backends, DeviceKind device,
                            const std::string& name) {
  if (name == kAuto || backends.contains(name)) return "";
  std::string names(kAuto);
  for (const auto& [known, factory] : backends) names += ", " + known;
  return std::string(variable_of(device)) + ": there is no backend \"" + name + "\" for tensors " +
         (device == DeviceKind::Cpu ? "in host memory" : "on GPUs") + "; use one of: " + names;
}

BackendRegistry& registry_of(RuntimeOptions& options, DeviceKind device) {
  return device == DeviceKind::Cpu ? options.backends : options.device_backends;
}

/// Reads the environment and skips invalid variables, so that the ranks can still meet to report
/// them. Throws UsageError for an invalid key, without which they cannot meet.
Config readable_config() {
  const EnvironmentLookup lookup = process_environment();
  Config config;
  for (const ConfigEntry& entry : config_table()) {
    std::optional<std::string> text = lookup(entry.name);
    if (!text && !entry.horovod_alias.empty()) text = lookup(entry.horovod_alias);
    if (!text) continue;
    try {
      entry.set(config, *text);
    } catch (const UsageError& error) {
      if (entry.name == "RONDE_JOB_KEY") throw UsageError(entry.name + ": " + error.what());
    }
  }
  return config;
}

/// Adds the sets before those of RONDE_PROCESS_SETS.
void add_process_sets(Config& config, const std::vector<std::vector<int>>& sets) {
  for (const std::vector<int>& ranks : sets) {
    if (!ranks.empty() && *std::ranges::min_element(ranks) >= 0) continue;
    throw UsageError(
        "ronde::init() or a ronde::World was given a process set that is empty or has a negative "
        "rank");
  }
  std::vector<std::vector<int>> all = sets;
  const std::vector<std::vector<int>> configured = static_process_sets(config);
  all.insert(all.end(), configured.begin(), configured.end());
  config.process_sets = format_process_sets(all);
}

enum class Without { Folder, File };

/// Turns "t.json" into "t.NAME.json", so that no world writes into the files of another. A path
/// without an extension becomes "d/NAME" or "t.NAME", as `without` tells.
void add_name(std::string& path, const std::string& name, Without without) {
  if (path.empty()) return;
  const std::filesystem::path given(path);
  const std::string extension = given.extension();
  path = extension.empty() ? path + (without == Without::Folder ? "/" : ".") + name
                           : (given.parent_path() / given.stem()).string() + "." + name + extension;
}

/// Adapts the settings of the environment to a World.
void adapt_to_world(Config& config, const std::string& name, std::vector<std::string>& warnings) {
  add_name(config.timeline, name, Without::Folder);
  add_name(config.tuned, name, Without::File);
  add_name(config.autotune_log, name, Without::File);
  if (!config.dump.empty()) config.dump += "/" + name;
  if (config.profile != "1") add_name(config.profile, name, Without::File);
  add_name(config.metrics, name, Without::File);
  for (const auto& [variable, value] : {std::pair("RONDE_CPU_BACKEND", &config.cpu_backend),
                                        std::pair("RONDE_FABRIC", &config.fabric)}) {
    if (*value != "mpi") continue;
    warnings.push_back(std::string(variable) +
                       "=mpi is for ronde::init() alone: MPI moves no data of a ronde::World");
    *value = kAuto;
  }
  config.process_sets.clear();
  config.thread_affinity.clear();
}

/// Throws UsageError unless `start` has exactly one way for the ranks to meet.
void check_ways(const StartOptions& start) {
  const InitOptions& init = start.init;
  const int ways = static_cast<int>(init.mpi_communicator.has_value()) +
                   static_cast<int>(!init.mpi_ranks.empty()) +
                   static_cast<int>(init.key_value.has_value());
  if (ways > 1) {
    throw UsageError(
        "ronde::init() or a ronde::World was given more than one of an MPI communicator, ranks of "
        "MPI and a key-value store: choose how the ranks meet");
  }
  const std::string& name = start.runtime.world_name;
  if (name.empty() || start.meet || ways == 1) return;
  throw UsageError("ronde::World '" + name +
                   "' was not told who its ranks are: give it an MPI communicator, ranks of MPI, a "
                   "key-value store, or ranks of another world");
}

/// Lets operations end by time-outs of their own before a limit that nobody has set.
void leave_time(LoadedConfig& loaded, std::chrono::nanoseconds longest_timeout,
                RuntimeOptions& options) {
  const auto variable =
      std::ranges::find(loaded.sources, "RONDE_STALL_ABORT_S", &ConfigSource::name);
  const auto limit = std::chrono::ceil<std::chrono::seconds>(longest_timeout) + kStallSlack;
  double& limit_s = loaded.config.stall_abort_s;
  if (variable->source != "default" || limit_s == 0) return;
  limit_s = std::max(limit_s, static_cast<double>(limit.count()));
  options.stall_slack = kStallSlack;
}

/// Reads the environment. The first error is kept in config_error.
void load_environment(StartOptions& start) {
  RuntimeOptions& options = start.runtime;
  const auto keep = [&options](const std::string& error) {
    if (options.config_error.empty()) options.config_error = error;
  };
  try {
    LoadedConfig loaded = load_config_from_environment();
    options.effective_config = describe(loaded);
    leave_time(loaded, start.init.longest_timeout, options);
    options.config = loaded.config;
    start.warnings = std::move(loaded.warnings);
    const std::string& name = options.world_name;
    if (!name.empty()) adapt_to_world(options.config, name, start.warnings);
    add_tuning(loaded.sources, options, start.warnings);
  } catch (const UsageError& error) {
    keep(error.what());
    options.config = readable_config();
  }
  double& limit_s = options.config.init_timeout_s;
  limit_s = std::min(limit_s, start.longest_meeting.count());
  try {
    add_process_sets(options.config, start.init.process_sets);
  } catch (const UsageError& error) {
    keep(error.what());
  }
}

}  // namespace

void load_start_options(StartOptions& start, const BackendRegistry& registered) {
  check_ways(start);
  load_environment(start);
  RuntimeOptions& options = start.runtime;
  const StartingRanks ranks = {.mpi_communicator = start.init.mpi_communicator,
                               .mpi_ranks = start.init.mpi_ranks,
                               .mpi = program_mpi(),
                               .only_meet = !options.world_name.empty(),
                               .on_program_finalize = start.on_program_finalize};
  std::optional<MetRanks> met;
  if (start.meet) met = start.meet(milliseconds_of(options.config.init_timeout_s));
  const auto compose = [ranks, met, key_value = start.init.key_value](const Config& config) {
    if (met) return compose_met(config, *met);
    if (key_value) return compose_without_launcher(config, *key_value);
    return compose_built_in(config, ranks);
  };
  const auto set_backends = [registered, read_gpu = start.read_gpu](RuntimeOptions& of,
                                                                    BuiltIn built_in) {
    *read_gpu = std::move(built_in.read_gpu);
    of.backends = std::move(built_in.backends);
    of.device_backends = std::move(built_in.device_backends);
    for (const auto& each : registered) registry_of(of, each.second.device).insert(each);
  };
  BuiltIn built_in = compose(options.config);
  start.meets_in_init = built_in.meets_in_init;
  start.is_guest = ranks.mpi.is_there;
  options.make_transport = std::move(built_in.make_transport);
  options.hanging_start = std::move(built_in.hanging_start);
  options.make_board = std::move(built_in.make_board);
  set_backends(options, std::move(built_in));
  options.remake_backends = [compose, set_backends](RuntimeOptions& again) {
    set_backends(again, compose(again.config));
  };
  for (const auto& [device, name] : {std::pair(DeviceKind::Cpu, options.config.cpu_backend),
                                     std::pair(DeviceKind::Cuda, options.config.gpu_backend)}) {
    if (!options.config_error.empty()) break;
    options.config_error = unknown_backend(registry_of(options, device), device, name);
  }
}

std::unique_ptr<Runtime> start_runtime(StartOptions& start) {
  const auto warn = [level = parse_log_level(start.runtime.config.log_level),
                     world = start.runtime.world_name,
                     warnings = std::move(start.warnings)](int rank) {
    const Logger log(level, rank, world);
    // Launchers give all ranks the same environment: rank 0 warns for all.
    const LogLevel of_warning = rank <= 0 ? LogLevel::Warning : LogLevel::Debug;
    for (const std::string& warning : warnings) log.log(of_warning, warning);
  };
  try {
    if (start.meets_in_init) {  // the thread that starts later may not call MPI
      const auto made =
          std::make_shared<std::unique_ptr<Transport>>(start.runtime.make_transport());
      start.runtime.make_transport = [made] { return std::move(*made); };
    }
    auto runtime = std::make_unique<Runtime>(std::move(start.runtime));
    warn(runtime->topology().rank);
    return runtime;
  } catch (...) {
    warn(-1);
    throw;
  }
}

void check_backend(const std::string& name, const BackendFactory& factory) {
  const auto entry =
      std::ranges::find(config_table(), variable_of(factory.device), &ConfigEntry::name);
  Config scratch;
  try {
    entry->set(scratch, name);  // a name that the variable refuses could never be chosen
  } catch (const UsageError& error) {
    throw UsageError(std::string("ronde::register_backend(): ") + error.what());
  }
  const BuiltIn built_in = compose_built_in(scratch);
  const bool is_taken =
      (factory.device == DeviceKind::Cpu ? built_in.backends : built_in.device_backends)
          .contains(name);
  if (name == kAuto || is_taken) {
    throw UsageError("ronde::register_backend(): the name \"" + name +
                     "\" is taken by Ronde itself; choose another one");
  }
  if (!factory.create) {
    throw UsageError("ronde::register_backend(): the factory of \"" + name +
                     "\" has no create function");
  }
}

}  // namespace ronde
