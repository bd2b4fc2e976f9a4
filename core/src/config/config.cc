// SPDX-License-Identifier: Apache-2.0
#include "ronde/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <variant>

#include "core/src/base/rank_list.h"
#include "core/src/base/text.h"
#include "ronde/algorithms.h"
#include "ronde/error.h"
#include "ronde/log.h"

namespace ronde {
namespace {

[[noreturn]] void reject(std::string_view text, const std::string& accepted) {
  throw UsageError("\"" + std::string(text) + "\" is not " + accepted);
}

struct ByteUnit {
  std::string_view name;
  std::uint64_t bytes;
};

// Binary units are first and descend, as format_bytes() uses the first that divides.
constexpr std::size_t kBinaryUnits = 4;
constexpr std::array<ByteUnit, 10> kUnits = {{{"TiB", std::uint64_t{1} << 40},
                                              {"GiB", std::uint64_t{1} << 30},
                                              {"MiB", std::uint64_t{1} << 20},
                                              {"KiB", std::uint64_t{1} << 10},
                                              {"", 1},
                                              {"B", 1},
                                              {"kB", 1'000},
                                              {"MB", 1'000'000},
                                              {"GB", 1'000'000'000},
                                              {"TB", 1'000'000'000'000}}};

__extension__ using Wide = unsigned __int128;  // -Wpedantic knows no such type

}  // namespace

std::uint64_t parse_bytes(std::string_view text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto* const unit = std::ranges::find(kUnits, text.substr(end), &ByteUnit::name);
  // Computed in integers, as 64-bit sizes do not fit a double.
  std::string digits(text.substr(0, end));
  const std::size_t point = std::min(digits.find('.'), end);
  std::uint64_t denominator = 1;
  for (std::size_t i = point + 1; i < end; ++i) denominator *= 10;
  const std::size_t decimals = point < end ? end - point - 1 : 0;
  digits.erase(point, 1);
  const auto number = whole_number<std::uint64_t>(digits);
  const bool is_well_formed = number && unit != kUnits.end() && point > 0 && decimals <= 3 &&
                              (decimals > 0 || point == end);
  if (is_well_formed) {
    const Wide scaled = Wide{*number} * unit->bytes;
    const Wide bytes = scaled / denominator;
    if (bytes * denominator == scaled && bytes <= std::numeric_limits<std::uint64_t>::max()) {
      return static_cast<std::uint64_t>(bytes);
    }
  }
  reject(text,
         "a size: write a whole number of bytes, or a number (at most three decimals) with B, kB, "
         "MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024), such as 64MiB or "
         "1.5GiB");
}

std::string format_bytes(std::uint64_t bytes) {
  for (const ByteUnit& unit : std::span(kUnits).first(kBinaryUnits)) {
    if (bytes == 0 || bytes % unit.bytes != 0) continue;
    return std::to_string(bytes / unit.bytes) + std::string(unit.name);
  }
  return std::to_string(bytes);
}

namespace {

// Strict parsers of one value. Each parses the whole text or throws UsageError, which quotes the
// text and says what would be accepted.

/// Parses a decimal integer. `what` names the value: "a number of entries".
std::uint64_t parse_count(std::string_view text, std::string_view what, std::uint64_t lowest,
                          std::uint64_t highest) {
  const auto value = whole_number<std::uint64_t>(text);
  if (!value || *value < lowest || *value > highest) {
    reject(text, std::string(what) + ": write a whole number from " + std::to_string(lowest) +
                     " to " + std::to_string(highest));
  }
  return *value;
}

/// The limits of a real-valued variable; `unit` only for the error text.
struct RealRange {
  double lowest = 0;
  double highest = 0;
  bool lowest_excluded = false;
  std::string_view unit = {};
};

/// Returns the shortest text that parse_real() parses to the same value.
std::string format_real(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::string(text.data(), end) : std::to_string(value);
}

double parse_real(std::string_view text, const RealRange& range) {
  const auto value = whole_number<double>(text);
  const bool inside = value && std::isfinite(*value) && *value <= range.highest &&
                      (range.lowest_excluded ? *value > range.lowest : *value >= range.lowest);
  if (!inside) {
    reject(text, "a time in " + std::string(range.unit) + ": write a number " +
                     (range.lowest_excluded ? "above " : "from ") + format_real(range.lowest) +
                     (range.lowest_excluded ? ", at most " : " to ") + format_real(range.highest) +
                     ", without a unit");
  }
  return *value == 0 ? 0 : *value;  // "-0" is accepted as 0
}

/// Returns the words between the separators; none for an empty text.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; !text.empty() && begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

/// Parses numbers of at least 0 separated by commas; nullopt for another text.
std::optional<std::vector<int>> parse_numbers(std::string_view text) {
  std::vector<int> numbers;
  for (const std::string_view word : split(text, ',')) {
    const auto number = whole_number<int>(word);
    if (!number || *number < 0) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

/// Parses "0,2,4"; the empty text is the empty list.
std::vector<int> parse_core_list(std::string_view text) {
  if (const auto cores = parse_numbers(text)) return *cores;
  reject(
      text,
      "a list of cores: write core numbers separated by commas, one for each local rank, such as "
      "0,2,4");
}

/// Parses "GPU-8a3f,GPU-91c0": UUIDs of GPUs, or their beginnings.
std::vector<std::string> parse_device_list(std::string_view text) {
  constexpr std::string_view kUuid = "GPU-";
  constexpr std::size_t kLongestUuid = 40;
  std::vector<std::string> devices;
  for (const std::string_view word : split(text, ',')) {
    const bool is_uuid = word.starts_with(kUuid) && word.size() > kUuid.size() &&
                         word.size() <= kLongestUuid &&
                         word.find_first_not_of("0123456789abcdef-", kUuid.size()) == word.npos;
    if (!is_uuid) {
      reject(text,
             "a list of GPUs: write UUIDs, as `nvidia-smi -L` and `ronde info` show them, or their "
             "beginnings, separated by commas, such as GPU-8a3f,GPU-91c0");
    }
    devices.emplace_back(word);
  }
  return devices;
}

/// Parses "0,1;2,3", the ranks of each set.
std::vector<std::vector<int>> parse_process_sets(std::string_view text) {
  std::vector<std::vector<int>> sets;
  for (const std::string_view set : split(text, ';')) {
    const auto ranks = parse_numbers(set);
    if (!ranks || ranks->empty()) {
      reject(
          text,
          "a list of process sets: write ranks separated by commas, and sets by semicolons, such "
          "as 0,1;2,3");
    }
    sets.push_back(*ranks);
  }
  return sets;
}

/// Returns the text if it `is_valid`; `accepted` is as for reject().
std::string valid_text(std::string_view text, bool is_valid, const std::string& accepted) {
  if (!is_valid) reject(text, accepted);
  return std::string(text);
}

std::string parse_choice(std::string_view text, std::string_view what,
                         std::initializer_list<std::string_view> words) {
  std::string accepted = std::string(what) + ": write ";
  for (const std::string_view word : words) {
    accepted += (word == *words.begin() ? "" : " or ") + std::string(word);
  }
  return valid_text(text, std::ranges::find(words, text) != words.end(), accepted);
}

std::string parse_backend_name(std::string_view text) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789-_";
  return valid_text(
      text, !text.empty() && text.find_first_not_of(kLetters) == text.npos,
      "the name of a backend: write auto or a name in small letters, digits, - and _, such as mpi");
}

std::string parse_host_name(std::string_view text) {
  constexpr std::size_t kLongest = 255;  // as a host's name in POSIX
  const bool is_word = std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; });
  return valid_text(text, is_word && text.size() <= kLongest,
                    "the name of a host: write up to " + std::to_string(kLongest) +
                        " letters, digits or signs without a space");
}

/// Parses "20000-20100"; the empty text is any port.
PortRange parse_port_range(std::string_view text) {
  if (text.empty()) return {};
  const std::size_t dash = std::min(text.find('-'), text.size());
  const auto first = whole_number<std::uint16_t>(text.substr(0, dash));
  const auto last = whole_number<std::uint16_t>(text.substr(std::min(dash + 1, text.size())));
  if (!first || !last || *first == 0 || *first > *last) {
    reject(text, "a range of ports: write the lowest and the highest, such as 20000-20100");
  }
  return {*first, *last};
}

std::string parse_path(std::string_view text) {
  const bool is_line = std::ranges::none_of(
      text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; });
  return valid_text(text, is_line, "the path of a file: write it without control characters");
}

constexpr double kNever = 0;
constexpr double kLongestSeconds = 1e9;  // fits a steady_clock duration in nanoseconds
constexpr std::uint64_t kLargestFusion = std::uint64_t{1} << 40;
constexpr std::uint64_t kLargestHeap = std::uint64_t{1} << 40;
constexpr std::uint64_t kLargestPort = 65535;
constexpr std::uint64_t kMostEvents = std::uint64_t{1} << 30;
constexpr std::uint64_t kMostReplicaSteps = 1'000'000'000;
constexpr RealRange kCycle = {.lowest = 0, .highest = 60'000, .unit = "milliseconds"};
constexpr RealRange kPeriod = {.lowest = kNever, .highest = kLongestSeconds, .unit = "seconds"};
constexpr RealRange kDeadline = {
    .lowest = 0, .highest = kLongestSeconds, .lowest_excluded = true, .unit = "seconds"};

// The kinds of variables: a field of Config, and its valid values.

struct Bytes {
  std::uint64_t Config::*field;
  std::uint64_t highest;

  void set(Config& config, std::string_view text) const {
    const std::uint64_t bytes = parse_bytes(text);
    if (bytes > highest) {
      throw UsageError("\"" + std::string(text) + "\" is too large: at most " +
                       format_bytes(highest));
    }
    config.*field = bytes;
  }
  std::string get(const Config& config) const { return format_bytes(config.*field); }
};

struct Count {
  std::uint64_t Config::*field;
  std::string_view what;
  std::uint64_t lowest, highest;

  void set(Config& config, std::string_view text) const {
    config.*field = parse_count(text, what, lowest, highest);
  }
  std::string get(const Config& config) const { return std::to_string(config.*field); }
};

struct Flag {
  bool Config::*field;

  void set(Config& config, std::string_view text) const {
    config.*field = parse_choice(text, "a switch", {"0", "1"}) == "1";
  }
  std::string get(const Config& config) const { return config.*field ? "1" : "0"; }
};

struct Real {
  double Config::*field;
  RealRange range;

  void set(Config& config, std::string_view text) const { config.*field = parse_real(text, range); }
  std::string get(const Config& config) const { return format_real(config.*field); }
};

struct Text {
  std::string Config::*field;
  std::string (*parse)(std::string_view);

  void set(Config& config, std::string_view text) const { config.*field = parse(text); }
  std::string get(const Config& config) const { return config.*field; }
};

/// Never printed, not even where it is refused. set() accepts the text of get() like a value.
struct Secret {
  std::string Config::*field;

  void set(Config& config, std::string_view text) const {
    constexpr std::size_t kShortest = 16;
    constexpr std::size_t kLongest = 1024;
    if (!text.empty() && (text.size() < kShortest || text.size() > kLongest)) {
      throw UsageError("it has " + std::to_string(text.size()) + " characters, and needs " +
                       std::to_string(kShortest) + " to " + std::to_string(kLongest) +
                       ": take random ones, such as those of `openssl rand -hex 32`");
    }
    config.*field = text;
  }
  std::string get(const Config& config) const {
    return (config.*field).empty() ? "" : "(set, not shown)";
  }
};

template <auto kParse>
std::string checked(std::string_view text) {
  kParse(text);
  return std::string(text);
}

/// "cuda" stages by MPI where it has to, and so is also known as "mpi".
std::string checked_gpu_backend(std::string_view text) {
  std::string name = parse_backend_name(text);
  return name == "mpi" ? "cuda" : name;
}

std::string checked_log_level(std::string_view text) {
  return std::string(to_string(parse_log_level(text)));
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

std::string checked_fabric(std::string_view text) {
  return parse_choice(text, "a network layer", {"auto", "mpi", "ucx"});
}

template <Collective kCollective>
std::string checked_algorithm(std::string_view text) {
  parse_algorithm(kCollective, text);
  return std::string(text);
}

std::string checked_rules(std::string_view text) {
  return format_algorithm_rules(parse_algorithm_rules(text));
}

std::string checked_profile(std::string_view text) {
  return valid_text(parse_path(text), text.empty() || text == "1" || text.ends_with(".json"),
                    "where a profile can go: 1 for a summary, or a FILE.json");
}

std::string checked_metrics(std::string_view text) {
  return valid_text(parse_path(text), text.empty() || text.ends_with(".prom"),
                    "where metrics can go: give the path of a FILE.prom, which node_exporter's "
                    "textfile collector reads");
}

std::string checked_process_sets(std::string_view text) {
  return format_process_sets(parse_process_sets(text));
}

/// A ConfigEntry, as it is written in the table below.
struct Variable {
  std::string_view name, horovod_alias, unit;
  std::variant<Bytes, Count, Flag, Real, Text, Secret> value;
  std::string_view text;
  ConfigScope scope = ConfigScope::GroupWide;

  ConfigEntry entry() const {
    return {std::string(name),
            std::string(horovod_alias),
            std::string(unit),
            std::string(text),
            scope,
            [this](Config& config, std::string_view value_text) {
              std::visit([&](const auto& kind) { kind.set(config, value_text); }, value);
            },
            [this](const Config& config) {
              return std::visit([&](const auto& kind) { return kind.get(config); }, value);
            }};
  }
};

constexpr Variable kVariables[] = {
    {"RONDE_FUSION_BYTES", "HOROVOD_FUSION_THRESHOLD", "bytes",
     Bytes{&Config::fusion_bytes, kLargestFusion},
     "Size of the fusion buffer: tensors that are ready together travel together up to this size. "
     "0 sends every tensor by itself."},
    {"RONDE_CYCLE_TIME_MS", "HOROVOD_CYCLE_TIME", "ms", Real{&Config::cycle_time_ms, kCycle},
     "Longest wait for more tensors to fuse with, once one is submitted. 0 sends at once whatever "
     "is there."},
    {"RONDE_CACHE_CAPACITY", "HOROVOD_CACHE_CAPACITY", "entries",
     Count{&Config::cache_capacity, "a number of cache entries", 0, 1 << 20},
     "Agreed operations that are remembered, so that repeating one costs a bit instead of a "
     "message. 0 turns the cache off."},
    {"RONDE_FREEZE_AFTER_STEPS", "", "steps",
     Count{&Config::freeze_after_steps, "a number of steps", 0, 1'000'000},
     "Ranks of one host that repeat the same operations, or a pattern of up to eight steps, so "
     "many times keep their order and fusion from then on, and need no messages until one of them "
     "does something else. 0: never."},
    {"RONDE_CPU_BACKEND", "HOROVOD_CPU_OPERATIONS", "",
     Text{&Config::cpu_backend, parse_backend_name},
     "Backend for tensors in host memory: auto takes the best one that suits; `ronde info` lists "
     "the names."},
    {"RONDE_FABRIC", "", "", Text{&Config::fabric, checked_fabric},
     "What carries messages between hosts: mpi, ucx, or auto: mpi where MPI has started the ranks, "
     "else ucx."},
    {"RONDE_ALLREDUCE", "", "", Text{&Config::allreduce, checked_algorithm<Collective::Allreduce>},
     "Algorithm of allreduces between hosts: ring, recursive_doubling, halving_doubling, pairwise, "
     "or auto: by bytes and hosts. RONDE_EXACT=1 makes sums and products of floats pairwise."},
    {"RONDE_BROADCAST", "", "", Text{&Config::broadcast, checked_algorithm<Collective::Broadcast>},
     "The same for broadcasts: binomial, van_de_geijn, chain or auto."},
    {"RONDE_ALLGATHER", "", "", Text{&Config::allgather, checked_algorithm<Collective::Allgather>},
     "The same for allgathers: ring, recursive_doubling (of a power of two of ranks), bruck, "
     "pairwise or auto."},
    {"RONDE_REDUCESCATTER", "", "",
     Text{&Config::reducescatter, checked_algorithm<Collective::Reducescatter>},
     "The same for reduce-scatters: ring, halving (of a power of two of ranks), pairwise or auto."},
    {"RONDE_ALLTOALL", "", "", Text{&Config::alltoall, checked_algorithm<Collective::Alltoall>},
     "The same for alltoalls: pairwise, bruck or auto."},
    {"RONDE_ALGORITHMS", "", "", Text{&Config::algorithms, checked_rules},
     "What auto chooses for these: rules separated by commas, each "
     "COLLECTIVE/RANKS:ALGORITHM@BYTES "
     "with the least ranks and bytes, if any, such as broadcast:chain@1MiB. `ronde tune "
     "--collectives` measures them. Where no rule holds, built-in ones count."},
    {"RONDE_SYMMETRIC_HEAP_BYTES", "", "bytes", Bytes{&Config::symmetric_heap_bytes, kLargestHeap},
     "Address space of a rank for gradients that the ranks of its host reduce in place (gradient "
     "views); only what is used takes memory. 0: none, every tensor is staged."},
    {"RONDE_PROCESS_SETS", "", "ranks", Text{&Config::process_sets, checked_process_sets},
     "Process sets that init makes, numbered from 1: their ranks separated by commas, the sets by "
     "semicolons, such as 0,1;2,3."},
    {"RONDE_EXACT", "", "", Flag{&Config::exact},
     "1: the order of every reduction depends on ranks and hosts alone, not on the time, the size, "
     "or the place in a bucket. 0: libraries may choose (MPI_Allreduce, NCCL), which can be "
     "faster."},
    {"RONDE_JOIN_AVERAGE", "", "", Text{&Config::join_average, checked_join_average},
     "What averages divide by while ranks have joined: contributing (the ranks that still have "
     "data) or all."},
    {"RONDE_CHECK_REPLICAS", "", "steps", Text{&Config::check_replicas, checked_replica_check},
     "When DistributedOptimizer compares the ranks' parameters, and state and options of the inner "
     "optimizer: first (all of them in the first step, and the first after a join; then a part in "
     "each step, which warns), a number N (all also every N steps, and every difference is an "
     "error) or off."},
    {"RONDE_VERIFY", "", "", Flag{&Config::verify},
     "1: the ranks compare checksums of results in host memory that must be equal on all of them, "
     "and the group fails at the first that differs. For debugging: nothing freezes, and "
     "operations take longer."},
    {"RONDE_GPU_BACKEND", "", "", Text{&Config::gpu_backend, checked_gpu_backend},
     "Backend for tensors on GPUs: nccl, or cuda (CUDA IPC if all ranks are on one host, else "
     "RONDE_GPU_AWARE_MPI, else staging through host memory for RONDE_CPU_BACKEND; also called "
     "mpi); auto takes the best one that all ranks can have."},
    {"RONDE_CUDA_IPC", "", "", Flag{&Config::cuda_ipc},
     "1: under RONDE_GPU_BACKEND=cuda ranks that are all on one host read each other's GPU memory. "
     "0: what is on GPUs goes through MPI (RONDE_GPU_AWARE_MPI) or is staged through host memory."},
    {"RONDE_CUDA_IPC_DIRECT_BYTES", "", "bytes",
     Bytes{&Config::cuda_ipc_direct_bytes, kLargestFusion},
     "Tensors of this size and above that are reduced alone and in place are mapped by the other "
     "ranks themselves, instead of being copied into the fusion buffer. 0: none is."},
    {"RONDE_GPU_AWARE_MPI", "", "", Flag{&Config::gpu_aware_mpi},
     "1: the MPI takes addresses of GPUs: under RONDE_GPU_BACKEND=cuda, collectives that CUDA IPC "
     "does not move go through it from and to GPU memory. 0: they are staged through host memory."},
    {"RONDE_REGISTRATION_CACHE", "", "", Flag{&Config::registration_cache},
     "1: mappings of other ranks' GPU memory, page-locked host memory and registrations with NCCL "
     "are kept for the next time. 0: the first two are made for each operation and given up after "
     "it, and nothing is registered with NCCL."},
    {"RONDE_REGISTRATION_CACHE_BYTES", "", "bytes",
     Bytes{&Config::registration_cache_bytes, kLargestHeap},
     "Most memory of other ranks' tensors that stays mapped: all are closed after an operation "
     "that exceeds it."},
    {"RONDE_VISIBLE_DEVICES", "", "GPUs",
     Text{&Config::visible_devices, checked<parse_device_list>},
     "GPUs whose memory ranks may map, whatever CUDA_VISIBLE_DEVICES leaves to the framework: "
     "UUIDs or their beginnings, separated by commas. Empty: all.",
     ConfigScope::PerRank},
    {"RONDE_AUTOTUNE", "HOROVOD_AUTOTUNE", "", Flag{&Config::autotune},
     "1: Ronde tries other fusion bytes, cycle times and freezing while the program runs, and "
     "keeps what makes its steps faster."},
    {"RONDE_AUTOTUNE_LOG", "HOROVOD_AUTOTUNE_LOG", "", Text{&Config::autotune_log, parse_path},
     "File to which rank 0 writes each measurement of RONDE_AUTOTUNE, as CSV.",
     ConfigScope::PerRank},
    {"RONDE_TUNED", "", "", Text{&Config::tuned, parse_path},
     "File with settings that RONDE_AUTOTUNE or `ronde tune --collectives` found: rank 0 reads it "
     "for all ranks, and RONDE_AUTOTUNE writes it. Variables that are set win."},
    {"RONDE_STALL_WARN_S", "HOROVOD_STALL_CHECK_TIME_SECONDS", "s",
     Real{&Config::stall_warn_s, kPeriod},
     "Age at which an operation that some ranks have not submitted is reported, with the missing "
     "ranks; again each time it passes. 0: never."},
    {"RONDE_STALL_ABORT_S", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "s",
     Real{&Config::stall_abort_s, kPeriod},
     "Age at which such an operation ends the group with a GroupError on every rank. 0: never."},
    {"RONDE_INIT_TIMEOUT_S", "", "s", Real{&Config::init_timeout_s, kDeadline},
     "How long init waits for all ranks to arrive."},
    {"RONDE_SHUTDOWN_TIMEOUT_S", "", "s", Real{&Config::shutdown_timeout_s, kPeriod},
     "How long shutdown waits for the other ranks. 0: as long as they live."},
    {"RONDE_LOG_LEVEL", "HOROVOD_LOG_LEVEL", "", Text{&Config::log_level, checked_log_level},
     "What is written to standard error: trace, debug, info, warning, error or off. debug tells of "
     "connections, of why a backend was chosen, and of frozen schedules; trace of each decision "
     "and fused bucket as well.",
     ConfigScope::PerRank},
    {"RONDE_COMPUTE_THREADS", "", "threads",
     Count{&Config::compute_threads, "a number of threads", 0, 4096},
     "Threads that LibTorch computes with. 0: OMP_NUM_THREADS if set, else the cores of the ranks "
     "of its host, divided by their number.",
     ConfigScope::PerRank},
    {"RONDE_THREAD_AFFINITY", "HOROVOD_THREAD_AFFINITY", "cores",
     Text{&Config::thread_affinity, checked<parse_core_list>},
     "Cores for the coordinator threads of a host, separated by commas, by local rank: at least as "
     "many as the host has ranks. Empty: not pinned.",
     ConfigScope::PerRank},
    {"RONDE_HOST_ID", "", "", Text{&Config::host_id, parse_host_name},
     "What this rank's host is called, if Ronde is not to find out which ranks share one: ranks of "
     "equal names share memory, others talk by TCP.",
     ConfigScope::PerRank},
    {"RONDE_PORT", "", "", Count{&Config::port, "a port", 0, kLargestPort},
     "TCP port at which rank 0 awaits the others where no MPI launcher started them. 0: "
     "MASTER_PORT + 1, or under Slurm one of 20000 to 29999 that the job and its step give."},
    {"RONDE_PORT_RANGE", "", "", Text{&Config::port_range, checked<parse_port_range>},
     "TCP ports that rank 0 (beyond 33 hosts, the first rank of any) may take for its connections "
     "with other hosts once the ranks have met, such as 20000-20100. Empty: any.",
     ConfigScope::PerRank},
    {"RONDE_JOB_KEY", "", "", Secret{&Config::job_key},
     "Secret of the job, at least 16 characters: ranks prove to each other that they have it "
     "before they talk. It is never printed. Empty: none."},
    {"RONDE_EVENTS", "", "", Count{&Config::events, "a number of events", 0, kMostEvents},
     "How many of the most recent events a rank keeps, 128 bytes each, rounded up to a power of "
     "two. Figures, timeline and dumps are made of them; 0 turns them all off.",
     ConfigScope::PerRank},
    {"RONDE_PROFILE", "", "", Text{&Config::profile, checked_profile},
     "Where the time went, of all ranks: 1 prints the report of ronde prof in shutdown(), a "
     "FILE.json keeps the figures for it. After a failure each rank writes FILE.rankN.json."},
    {"RONDE_TIMELINE", "HOROVOD_TIMELINE", "", Text{&Config::timeline, parse_path},
     "A folder in which each rank writes a trace for Perfetto and ronde prof; or a FILE.json, into "
     "which rank 0 puts those of all ranks in shutdown(), if it can read their folder FILE.ranks. "
     "What rank 0 has counts on all ranks.",
     ConfigScope::PerRank},
    {"RONDE_DUMP", "", "", Text{&Config::dump, parse_path},
     "A folder in which each rank writes its most recent events and what it waits for when the "
     "group fails or an operation stalls, for ronde prof hang.",
     ConfigScope::PerRank},
    {"RONDE_DUMP_ON_SIGUSR2", "", "", Flag{&Config::dump_on_sigusr2},
     "1: SIGUSR2 has a rank write into RONDE_DUMP, too.", ConfigScope::PerRank},
    {"RONDE_METRICS", "", "", Text{&Config::metrics, checked_metrics},
     "Figures for Prometheus: FILE.prom has each rank write FILE.rankN.prom every few seconds, for "
     "node_exporter's textfile collector.",
     ConfigScope::PerRank},
    {"RONDE_TOP", "", "", Flag{&Config::top},
     "1: a rank opens a socket through which `ronde top` of the same user watches it.",
     ConfigScope::PerRank},
};

}  // namespace

const std::vector<ConfigEntry>& config_table() {
  // Never destroyed: the default runtime may read it while the process destroys its statics.
  static const auto* const kTable = [] {
    auto* const table = new std::vector<ConfigEntry>();
    for (const Variable& variable : kVariables) table->push_back(variable.entry());
    return table;
  }();
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

PortRange port_range(const Config& config) {
  return parse_port_range(config.port_range);
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
  if (cores.empty()) return std::nullopt;
  if (cores.size() < static_cast<std::size_t>(local_size)) {
    throw UsageError("RONDE_THREAD_AFFINITY: \"" + config.thread_affinity + "\" lists " +
                     std::to_string(cores.size()) + " cores for the " + std::to_string(local_size) +
                     " ranks of this host: write one core for each of them");
  }
  return cores.at(static_cast<std::size_t>(local_rank));
}

}  // namespace ronde
