// SPDX-License-Identifier: Apache-2.0
#include "ronde/config.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/src/base/rank_list.h"
#include "core/src/config/config_parse.h"
#include "ronde/error.h"
#include "ronde/log.h"

namespace ronde {
namespace {

constexpr double kNever = 0;
constexpr double kLongestSeconds = 1e9;  // fits a steady_clock duration in nanoseconds
constexpr double kLongestCycleMs = 60'000;
constexpr std::uint64_t kLargestFusion = std::uint64_t{1} << 40;
constexpr std::uint64_t kLargestHeap = std::uint64_t{1} << 40;
constexpr std::uint64_t kMostCacheEntries = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostFreezeSteps = 1'000'000;
constexpr std::uint64_t kMostReplicaSteps = 1'000'000'000;
constexpr std::uint64_t kMostThreads = 4096;
constexpr std::uint64_t kMostNcclStreams = 16;

// Each of these completes what the manual says of a variable.

ConfigEntry bytes_entry(std::uint64_t Config::*field, std::uint64_t highest, ConfigEntry entry) {
  entry.set = [field, highest](Config& config, std::string_view text) {
    const std::uint64_t bytes = parse_bytes(text);
    if (bytes > highest) {
      throw UsageError("\"" + std::string(text) + "\" is too large: at most " +
                       format_bytes(highest));
    }
    config.*field = bytes;
  };
  entry.get = [field](const Config& config) { return format_bytes(config.*field); };
  return entry;
}

struct CountRange {
  std::uint64_t lowest = 0;
  std::uint64_t highest = 0;
};

ConfigEntry count_entry(std::uint64_t Config::*field, std::string what, CountRange range,
                        ConfigEntry entry) {
  entry.set = [field, what = std::move(what), range](Config& config, std::string_view text) {
    config.*field = parse_count(text, what, range.lowest, range.highest);
  };
  entry.get = [field](const Config& config) { return std::to_string(config.*field); };
  return entry;
}

ConfigEntry flag_entry(bool Config::*field, ConfigEntry entry) {
  entry.set = [field](Config& config, std::string_view text) {
    config.*field = parse_choice(text, "a switch", {"0", "1"}) == "1";
  };
  entry.get = [field](const Config& config) { return std::string(config.*field ? "1" : "0"); };
  return entry;
}

ConfigEntry real_entry(double Config::*field, RealRange range, ConfigEntry entry) {
  entry.set = [field, range](Config& config, std::string_view text) {
    config.*field = parse_real(text, range);
  };
  entry.get = [field](const Config& config) { return format_real(config.*field); };
  return entry;
}

ConfigEntry text_entry(std::string Config::*field, std::string (*parse)(std::string_view),
                       ConfigEntry entry) {
  entry.set = [field, parse](Config& config, std::string_view text) {
    config.*field = parse(text);
  };
  entry.get = [field](const Config& config) { return config.*field; };
  return entry;
}

constexpr RealRange kPeriod = {.lowest = kNever, .highest = kLongestSeconds, .unit = "seconds"};
constexpr RealRange kDeadline = {
    .lowest = 0, .highest = kLongestSeconds, .lowest_excluded = true, .unit = "seconds"};

std::string checked_log_level(std::string_view text) {
  return std::string(to_string(parse_log_level(text)));
}

std::string checked_core_list(std::string_view text) {
  parse_core_list(text);
  return std::string(text);
}

std::string checked_device_list(std::string_view text) {
  parse_device_list(text);
  return std::string(text);
}

std::string checked_join_average(std::string_view text) {
  return parse_choice(text, "what an average divides by", {"contributing", "all"});
}

std::string checked_replica_check(std::string_view text) {
  const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  if (!is_number) {
    return parse_choice(text, "when replicas are compared (or a number of steps)",
                        {"first", "off"});
  }
  return std::to_string(parse_count(text, "a number of steps", 1, kMostReplicaSteps));
}

std::string checked_handover(std::string_view text) {
  return parse_choice(text, "how ranks hand over", {"auto", "flags", "kernels"});
}

std::string checked_process_sets(std::string_view text) {
  return format_process_sets(parse_process_sets(text));
}

std::vector<ConfigEntry> engine_entries() {
  return {
      bytes_entry(&Config::fusion_bytes, kLargestFusion,
                  {.name = "RONDE_FUSION_BYTES",
                   .horovod_twin = "HOROVOD_FUSION_THRESHOLD",
                   .unit = "bytes",
                   .text = "Size of the fusion buffer: tensors that are ready together travel "
                           "together up to this size. 0 sends every tensor by itself."}),
      real_entry(&Config::cycle_time_ms,
                 {.lowest = 0, .highest = kLongestCycleMs, .unit = "milliseconds"},
                 {.name = "RONDE_CYCLE_TIME_MS",
                  .horovod_twin = "HOROVOD_CYCLE_TIME",
                  .unit = "ms",
                  .text = "Longest wait for more tensors to fuse with, once one is submitted. 0 "
                          "sends at once whatever is there."}),
      count_entry(&Config::cache_capacity, "a number of cache entries",
                  {.highest = kMostCacheEntries},
                  {.name = "RONDE_CACHE_CAPACITY",
                   .horovod_twin = "HOROVOD_CACHE_CAPACITY",
                   .unit = "entries",
                   .text = "Agreed operations that are remembered, so that repeating one costs a "
                           "bit instead of a message. 0 turns the cache off."}),
      count_entry(&Config::freeze_after_steps, "a number of steps", {.highest = kMostFreezeSteps},
                  {.name = "RONDE_FREEZE_AFTER_STEPS",
                   .unit = "steps",
                   .text = "Ranks of one host that repeat the same operations so many times keep "
                           "their order and fusion from then on, and need no messages until one "
                           "of them does something else. 0: never."}),
      text_entry(&Config::cpu_backend, parse_backend_name,
                 {.name = "RONDE_CPU_BACKEND",
                  .horovod_twin = "HOROVOD_CPU_OPERATIONS",
                  .text = "Backend for tensors in host memory: auto takes the best one that suits; "
                          "`ronde info` lists the names."}),
      bytes_entry(&Config::symmetric_heap_bytes, kLargestHeap,
                  {.name = "RONDE_SYMMETRIC_HEAP_BYTES",
                   .unit = "bytes",
                   .text = "Address space of a rank for gradients that the ranks of its host "
                           "reduce in place (gradient views); only what is used takes memory. 0: "
                           "none, every tensor is staged."}),
      text_entry(&Config::process_sets, checked_process_sets,
                 {.name = "RONDE_PROCESS_SETS",
                  .unit = "ranks",
                  .text = "Process sets that init makes, numbered from 1: their ranks separated by "
                          "commas, the sets by semicolons, such as 0,1;2,3."}),
  };
}

std::vector<ConfigEntry> training_entries() {
  return {
      flag_entry(&Config::exact,
                 {.name = "RONDE_EXACT",
                  .text = "1: the order of every reduction depends on ranks and hosts alone, not "
                          "on the time, the size, or the place in a bucket. 0: libraries may "
                          "choose (MPI_Allreduce, NCCL), which can be faster."}),
      text_entry(&Config::join_average, checked_join_average,
                 {.name = "RONDE_JOIN_AVERAGE",
                  .text = "What averages divide by while ranks have joined: contributing (the "
                          "ranks that still have data) or all."}),
      text_entry(
          &Config::check_replicas, checked_replica_check,
          {.name = "RONDE_CHECK_REPLICAS",
           .unit = "steps",
           .text = "When DistributedOptimizer compares the ranks' parameters, and options of "
                   "the inner optimizer: first (in the first step, and the first after a "
                   "join), a number N (also every N steps) or off."}),
  };
}

std::vector<ConfigEntry> gpu_entries() {
  return {
      text_entry(&Config::gpu_backend, parse_backend_name,
                 {.name = "RONDE_GPU_BACKEND",
                  .text = "Backend for tensors on GPUs: nccl, or mpi (CUDA IPC between the ranks "
                          "of a host, else an MPI that takes addresses of GPUs, else staging "
                          "through host memory for RONDE_CPU_BACKEND); auto takes the best one "
                          "that all ranks can have."}),
      flag_entry(&Config::cuda_ipc,
                 {.name = "RONDE_CUDA_IPC",
                  .text = "1: under RONDE_GPU_BACKEND=mpi the ranks of a host read each other's "
                          "GPU memory. 0: what is on GPUs goes through MPI (RONDE_GPU_AWARE_MPI) "
                          "or is staged through host memory."}),
      text_entry(&Config::cuda_ipc_handover, checked_handover,
                 {.name = "RONDE_CUDA_IPC_HANDOVER",
                  .text = "How the streams of the ranks of a host wait for each other: flags (in "
                          "host memory, awaited by streams), kernels (which look at flags in GPU "
                          "memory). auto: kernels where no two ranks share a GPU, else flags."}),
      bytes_entry(&Config::cuda_ipc_direct_bytes, kLargestFusion,
                  {.name = "RONDE_CUDA_IPC_DIRECT_BYTES",
                   .unit = "bytes",
                   .text = "Tensors of this size and above that are reduced alone are mapped by "
                           "the other ranks themselves, instead of being copied into the fusion "
                           "buffer. 0: none is."}),
      flag_entry(
          &Config::gpu_aware_mpi,
          {.name = "RONDE_GPU_AWARE_MPI",
           .text = "1: under RONDE_GPU_BACKEND=mpi, what CUDA IPC does not move goes through "
                   "MPI from and to GPU memory, where the MPI says that it takes such "
                   "addresses and a trial proves it. 0: it is staged through host memory, "
                   "for an MPI that crashes in the trial."}),
  };
}

std::vector<ConfigEntry> gpu_resource_entries() {
  return {
      flag_entry(&Config::registration_cache,
                 {.name = "RONDE_REGISTRATION_CACHE",
                  .text = "1: mappings of other ranks' GPU memory, page-locked host memory and "
                          "registrations with NCCL are kept for the next time. 0: the first two "
                          "are made for each operation and given up after it, and nothing is "
                          "registered with NCCL."}),
      bytes_entry(&Config::registration_cache_bytes, kLargestHeap,
                  {.name = "RONDE_REGISTRATION_CACHE_BYTES",
                   .unit = "bytes",
                   .text = "Most memory whose registrations are kept; beyond it those that were "
                           "not used for longest are given up."}),
      count_entry(&Config::nccl_streams, "a number of streams",
                  {.lowest = 1, .highest = kMostNcclStreams},
                  {.name = "RONDE_NCCL_STREAMS",
                   .horovod_twin = "HOROVOD_NUM_NCCL_STREAMS",
                   .unit = "streams",
                   .text = "Streams, each with a communicator of its own, that operations take "
                           "turns on."}),
      text_entry(&Config::visible_devices, checked_device_list,
                 {.name = "RONDE_VISIBLE_DEVICES",
                  .unit = "GPUs",
                  .text = "GPUs whose memory ranks may map, whatever CUDA_VISIBLE_DEVICES leaves "
                          "to the framework: UUIDs, or ordinals in the order of PCI addresses, "
                          "separated by commas. Empty: all.",
                  .scope = ConfigScope::PerRank}),
  };
}

std::vector<ConfigEntry> failure_entries() {
  return {
      real_entry(
          &Config::stall_warn_s, kPeriod,
          {.name = "RONDE_STALL_WARN_S",
           .horovod_twin = "HOROVOD_STALL_CHECK_TIME_SECONDS",
           .unit = "s",
           .text = "Age at which an operation that some ranks have not submitted is "
                   "reported, with the missing ranks; again each time it passes. 0: never."}),
      real_entry(&Config::stall_abort_s, kPeriod,
                 {.name = "RONDE_STALL_ABORT_S",
                  .horovod_twin = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
                  .unit = "s",
                  .text = "Age at which such an operation ends the group with a GroupError on "
                          "every rank. 0: never."}),
      real_entry(&Config::init_timeout_s, kDeadline,
                 {.name = "RONDE_INIT_TIMEOUT_S",
                  .unit = "s",
                  .text = "How long init waits for all ranks to arrive."}),
      real_entry(&Config::shutdown_timeout_s, kPeriod,
                 {.name = "RONDE_SHUTDOWN_TIMEOUT_S",
                  .unit = "s",
                  .text = "How long shutdown waits for the other ranks. 0: as long as they live."}),
  };
}

std::vector<ConfigEntry> process_entries() {
  return {
      text_entry(&Config::log_level, checked_log_level,
                 {.name = "RONDE_LOG_LEVEL",
                  .horovod_twin = "HOROVOD_LOG_LEVEL",
                  .text = "What is written to standard error: trace, debug, info, warning, error "
                          "or off. debug tells of connections, of why a backend was chosen, and of "
                          "frozen schedules; trace of each decision and fused bucket as well.",
                  .scope = ConfigScope::PerRank}),
      count_entry(&Config::compute_threads, "a number of threads", {.highest = kMostThreads},
                  {.name = "RONDE_COMPUTE_THREADS",
                   .unit = "threads",
                   .text = "Threads that LibTorch computes with. 0: OMP_NUM_THREADS if set, else "
                           "the cores of the ranks of its host, divided by their number.",
                   .scope = ConfigScope::PerRank}),
      text_entry(&Config::thread_affinity, checked_core_list,
                 {.name = "RONDE_THREAD_AFFINITY",
                  .horovod_twin = "HOROVOD_THREAD_AFFINITY",
                  .unit = "cores",
                  .text = "Cores for the coordinator threads of a host, separated by commas, by "
                          "local rank: at least as many as the host has ranks. Empty: not pinned.",
                  .scope = ConfigScope::PerRank}),
      text_entry(
          &Config::host_id, parse_host_name,
          {.name = "RONDE_HOST_ID",
           .text = "What this rank's host is called, if Ronde is not to find out which ranks "
                   "share one: ranks of equal names share memory, others talk by TCP.",
           .scope = ConfigScope::PerRank}),
  };
}

std::vector<ConfigEntry> make_table() {
  std::vector<ConfigEntry> table = engine_entries();
  for (std::vector<ConfigEntry> part : {training_entries(), gpu_entries(), gpu_resource_entries(),
                                        failure_entries(), process_entries()}) {
    std::move(part.begin(), part.end(), std::back_inserter(table));
  }
  return table;
}

}  // namespace

const std::vector<ConfigEntry>& config_table() {
  // Never destroyed: the default runtime may read it while the process's statics go.
  static const auto* const kTable = new std::vector<ConfigEntry>(make_table());
  return *kTable;
}

void check_config(const Config& config) {
  if (config.stall_abort_s != kNever && config.stall_abort_s < config.stall_warn_s) {
    throw UsageError("RONDE_STALL_ABORT_S=" + format_real(config.stall_abort_s) +
                     " is below RONDE_STALL_WARN_S=" + format_real(config.stall_warn_s) +
                     ": a stall would end the group before it is reported. Lower "
                     "RONDE_STALL_WARN_S too (0: no report), or raise RONDE_STALL_ABORT_S (0: "
                     "never end)");
  }
}

std::vector<std::string> visible_devices(const Config& config) {
  return parse_device_list(config.visible_devices);
}

std::optional<std::uint64_t> replica_check_period(const Config& config) {
  if (config.check_replicas == "off") return std::nullopt;
  if (config.check_replicas == "first") return 0;
  return parse_count(config.check_replicas, "a number of steps", 1, kMostReplicaSteps);
}

std::vector<std::vector<int>> static_process_sets(const Config& config) {
  return parse_process_sets(config.process_sets);
}

std::string format_process_sets(const std::vector<std::vector<int>>& sets) {
  std::string text;
  for (const std::vector<int>& ranks : sets) text += (text.empty() ? "" : ";") + list_ranks(ranks);
  return text;
}

std::optional<int> affinity_core(const Config& config, int local_rank, int local_size) {
  const std::vector<int> cores = parse_core_list(config.thread_affinity);
  if (cores.empty()) {
    return std::nullopt;
  }
  if (cores.size() < static_cast<std::size_t>(local_size)) {
    throw UsageError("RONDE_THREAD_AFFINITY: \"" + config.thread_affinity + "\" lists " +
                     std::to_string(cores.size()) + " cores for the " + std::to_string(local_size) +
                     " ranks of this host: write one core for each of them");
  }
  return cores.at(static_cast<std::size_t>(local_rank));
}

}  // namespace ronde
