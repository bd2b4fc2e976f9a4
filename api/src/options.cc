// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "backends/compose.h"
#include "ronde/config.h"
#include "ronde/error.h"
#include "ronde/log.h"

namespace ronde {
namespace {

constexpr std::string_view kAuto = "auto";
constexpr std::string_view kCpuBackend = "RONDE_CPU_BACKEND";

std::string names_of(const BackendRegistry& backends, DeviceKind device) {
  std::string names(kAuto);
  for (const auto& [name, factory] : backends) {
    if (factory.device == device) {
      names += ", " + name;
    }
  }
  return names;
}

/// Why no CPU backend can be called `name`; empty if one is.
std::string unknown_backend(const BackendRegistry& backends, const std::string& name) {
  const auto found = backends.find(name);
  if (name == kAuto || (found != backends.end() && found->second.device == DeviceKind::Cpu)) {
    return "";
  }
  return std::string(kCpuBackend) + ": there is no backend \"" + name +
         "\" for tensors in host memory; use one of: " + names_of(backends, DeviceKind::Cpu);
}

void log_warnings(const std::vector<std::string>& warnings, const Logger& log, LogLevel level) {
  for (const std::string& warning : warnings) {
    log.log(level, warning);
  }
}

/// Before those of RONDE_PROCESS_SETS.
void add_process_sets(Config& config, const std::vector<std::vector<int>>& sets) {
  for (const std::vector<int>& ranks : sets) {
    const bool is_set = !ranks.empty() && *std::min_element(ranks.begin(), ranks.end()) >= 0;
    if (!is_set) {
      throw UsageError(
          "ronde::init() was given a process set that is empty or has a negative rank");
    }
  }
  std::vector<std::vector<int>> all = sets;
  const std::vector<std::vector<int>> configured = static_process_sets(config);
  all.insert(all.end(), configured.begin(), configured.end());
  config.process_sets = format_process_sets(all);
}

}  // namespace

StartOptions load_start_options(const InitOptions& init, const BackendRegistry& registered,
                                StallCallback on_stall) {
  const int ways = static_cast<int>(init.mpi_communicator.has_value()) +
                   static_cast<int>(!init.mpi_ranks.empty()) +
                   static_cast<int>(init.key_value.has_value());
  if (ways > 1) {
    throw UsageError(
        "ronde::init() was given more than one of an MPI communicator, ranks of MPI and a "
        "key-value store: choose how the ranks meet");
  }
  StartOptions start;
  RuntimeOptions& options = start.runtime;
  try {
    LoadedConfig loaded = load_config_from_environment();
    options.effective_config = describe(loaded);
    options.config = std::move(loaded.config);
    start.warnings = std::move(loaded.warnings);
  } catch (const UsageError& error) {
    options.config_error = error.what();
  }
  try {
    add_process_sets(options.config, init.process_sets);
  } catch (const UsageError& error) {
    if (options.config_error.empty()) options.config_error = error.what();
  }
  BuiltIn built_in =
      init.key_value ? compose_without_launcher(options.config, *init.key_value)
                     : compose_built_in(options.config, {.mpi_communicator = init.mpi_communicator,
                                                         .mpi_ranks = init.mpi_ranks});
  options.make_transport = std::move(built_in.make_transport);
  options.hanging_start = std::move(built_in.hanging_start);
  options.make_board = std::move(built_in.make_board);
  options.backends = std::move(built_in.backends);
  options.backends.insert(registered.begin(), registered.end());
  options.on_stall = std::move(on_stall);
  if (options.config_error.empty()) {
    options.config_error = unknown_backend(options.backends, options.config.cpu_backend);
  }
  return start;
}

std::unique_ptr<Runtime> start_runtime(StartOptions start) {
  const LogLevel level = parse_log_level(start.runtime.config.log_level);
  std::unique_ptr<Runtime> runtime;
  try {
    runtime = std::make_unique<Runtime>(std::move(start.runtime));
  } catch (...) {
    log_warnings(start.warnings, Logger(level), LogLevel::Warning);
    throw;
  }
  // Launchers hand the same environment to all ranks: one of them is enough to speak.
  const int rank = runtime->topology().rank;
  log_warnings(start.warnings, Logger(level, rank),
               rank == 0 ? LogLevel::Warning : LogLevel::Debug);
  return runtime;
}

void check_backend(const std::string& name, const BackendFactory& factory) {
  const auto& table = config_table();
  const auto entry = std::find_if(table.begin(), table.end(),
                                  [](const auto& each) { return each.name == kCpuBackend; });
  Config scratch;
  try {
    entry->set(scratch, name);  // what the variable cannot say could never be chosen
  } catch (const UsageError& error) {
    throw UsageError(std::string("ronde::register_backend(): ") + error.what());
  }
  if (name == kAuto || compose_built_in(scratch).backends.contains(name)) {
    throw UsageError("ronde::register_backend(): the name \"" + name +
                     "\" is taken by Ronde itself; choose another one");
  }
  if (!factory.create) {
    throw UsageError("ronde::register_backend(): the factory of \"" + name +
                     "\" has no create function");
  }
}

}  // namespace ronde
