// SPDX-License-Identifier: Apache-2.0
#include "ronde/config.h"

#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <set>

#include "tests/support/ranks/ranks.h"

namespace {

using Catch::Contains;
using ronde::Config;
using ronde::config_difference;
using ronde::ConfigEntry;
using ronde::ConfigScope;
using ronde::LoadedConfig;
using ronde::UsageError;

using Environment = std::map<std::string, std::string>;

LoadedConfig load(const Environment& environment) {
  std::vector<std::string> names;
  for (const auto& [name, value] : environment) names.push_back(name);
  return ronde::load_config(
      [&](const std::string& name) {
        const auto found = environment.find(name);
        return found != environment.end() ? std::optional(found->second) : std::nullopt;
      },
      names);
}

std::string error_of(const Environment& environment) {
  return ronde::test::text_of<UsageError>([&] { load(environment); });
}

std::string source_of(const LoadedConfig& loaded, const std::string& name) {
  const auto is_it = [&](const auto& source) { return source.name == name; };
  const auto found = std::ranges::find_if(loaded.sources, is_it);
  return found == loaded.sources.end() ? "missing" : found->source;
}

TEST_CASE("without variables every value is the default and says so") {
  const LoadedConfig loaded = load({});
  const Config defaults;
  REQUIRE(loaded.sources.size() == ronde::config_table().size());
  for (std::size_t i = 0; i < loaded.sources.size(); ++i) {
    const ConfigEntry& entry = ronde::config_table()[i];
    CHECK(loaded.sources[i].name == entry.name);
    CHECK(loaded.sources[i].source == "default");
    CHECK(loaded.sources[i].value == entry.get(defaults));
  }
  CHECK(loaded.warnings.empty());
  CHECK(loaded.config.fusion_bytes == 64u * 1024 * 1024);
}

/// Every variable, with a value that is not the default.
const Environment kOther = {
    {"RONDE_FUSION_BYTES", "1.5GiB"},
    {"RONDE_CYCLE_TIME_MS", "0.25"},
    {"RONDE_CACHE_CAPACITY", "7"},
    {"RONDE_CPU_BACKEND", "my-backend_2"},
    {"RONDE_FABRIC", "ucx"},
    {"RONDE_ALLREDUCE", "ring"},
    {"RONDE_BROADCAST", "chain"},
    {"RONDE_ALLGATHER", "bruck"},
    {"RONDE_REDUCESCATTER", "halving"},
    {"RONDE_ALLTOALL", "pairwise"},
    {"RONDE_ALGORITHMS", "allreduce:ring,allreduce/4:pairwise@16KiB"},
    {"RONDE_STALL_WARN_S", "2.5"},
    {"RONDE_STALL_ABORT_S", "5"},
    {"RONDE_INIT_TIMEOUT_S", "12"},
    {"RONDE_SHUTDOWN_TIMEOUT_S", "2.5e1"},
    {"RONDE_LOG_LEVEL", "trace"},
    {"RONDE_COMPUTE_THREADS", "3"},
    {"RONDE_THREAD_AFFINITY", "4,0,12"},
    {"RONDE_FREEZE_AFTER_STEPS", "5"},
    {"RONDE_HOST_ID", "node-1.example"},
    {"RONDE_PORT", "29600"},
    {"RONDE_PORT_RANGE", "20000-20100"},
    {"RONDE_JOB_KEY", "correct horse battery"},
    {"RONDE_SYMMETRIC_HEAP_BYTES", "3MiB"},
    {"RONDE_PROCESS_SETS", "0,1;2"},
    {"RONDE_EXACT", "1"},
    {"RONDE_JOIN_AVERAGE", "all"},
    {"RONDE_CHECK_REPLICAS", "100"},
    {"RONDE_VERIFY", "1"},
    {"RONDE_GPU_BACKEND", "nccl"},
    {"RONDE_CUDA_IPC", "0"},
    {"RONDE_REGISTRATION_CACHE", "0"},
    {"RONDE_REGISTRATION_CACHE_BYTES", "7MiB"},
    {"RONDE_VISIBLE_DEVICES", "GPU-8a3f,GPU-1"},
    {"RONDE_CUDA_IPC_DIRECT_BYTES", "5MiB"},
    {"RONDE_GPU_AWARE_MPI", "1"},
    {"RONDE_AUTOTUNE", "1"},
    {"RONDE_AUTOTUNE_LOG", "a log.csv"},
    {"RONDE_TUNED", "/tmp/a=b.json"},
    {"RONDE_EVENTS", "100"},
    {"RONDE_PROFILE", "run.json"},
    {"RONDE_TIMELINE", "/tmp/time line"},
    {"RONDE_DUMP", "dumps"},
    {"RONDE_DUMP_ON_SIGUSR2", "1"},
    {"RONDE_METRICS", "run.prom"},
    {"RONDE_TOP", "1"},
};

TEST_CASE("every variable reaches its own field and its text parses back") {
  REQUIRE(kOther.size() == ronde::config_table().size());
  const Config config = load(kOther).config;
  Config expected;
  expected.cycle_time_ms = 0.25, expected.cache_capacity = 7, expected.freeze_after_steps = 5;
  expected.fusion_bytes = 3ull << 29, expected.symmetric_heap_bytes = 3ull << 20;
  expected.cpu_backend = "my-backend_2", expected.fabric = "ucx", expected.gpu_backend = "nccl";
  expected.allreduce = "ring", expected.broadcast = "chain", expected.allgather = "bruck";
  expected.reducescatter = "halving", expected.alltoall = "pairwise";
  expected.algorithms = "allreduce:ring,allreduce/4:pairwise@16KiB";
  expected.stall_warn_s = 2.5, expected.stall_abort_s = 5, expected.init_timeout_s = 12;
  expected.shutdown_timeout_s = 25, expected.log_level = "trace", expected.compute_threads = 3;
  expected.thread_affinity = "4,0,12", expected.host_id = "node-1.example", expected.port = 29600;
  expected.port_range = "20000-20100", expected.job_key = "correct horse battery";
  expected.exact = true, expected.join_average = "all", expected.check_replicas = "100";
  expected.verify = true, expected.cuda_ipc = false;
  expected.cuda_ipc_direct_bytes = 5ull << 20, expected.gpu_aware_mpi = true;
  expected.registration_cache = false, expected.registration_cache_bytes = 7ull << 20;
  expected.visible_devices = "GPU-8a3f,GPU-1";
  expected.process_sets = "0,1;2", expected.autotune = true, expected.autotune_log = "a log.csv";
  expected.tuned = "/tmp/a=b.json", expected.events = 100, expected.profile = "run.json";
  expected.timeline = "/tmp/time line", expected.dump = "dumps", expected.dump_on_sigusr2 = true;
  expected.metrics = "run.prom", expected.top = true;
  CHECK(config.job_key == expected.job_key);  // which get() does not show
  CHECK(ronde::port_range(config).first == 20000);
  CHECK(ronde::port_range(config).last == 20100);
  CHECK(ronde::replica_check_period(config) == 100);
  CHECK(ronde::visible_devices(config) == std::vector<std::string>{"GPU-8a3f", "GPU-1"});
  CHECK(ronde::static_process_sets(config) == std::vector<std::vector<int>>{{0, 1}, {2}});
  for (const ConfigEntry& entry : ronde::config_table()) {
    Config copy = config;
    entry.set(copy, entry.get(config));
    CHECK(entry.get(copy) == entry.get(config));
    CHECK(entry.get(config) == entry.get(expected));
  }
}

TEST_CASE("the table has unique names and a manual for each, and mpi is a name of cuda") {
  CHECK(load({{"RONDE_GPU_BACKEND", "mpi"}}).config.gpu_backend == "cuda");
  CHECK(load({{"RONDE_CPU_BACKEND", "mpi"}}).config.cpu_backend == "mpi");
  std::set<std::string> names;
  for (const ConfigEntry& entry : ronde::config_table()) {
    CHECK(entry.name.starts_with("RONDE_"));
    CHECK(names.insert(entry.name).second);
    CHECK_FALSE(entry.text.empty());
    if (!entry.horovod_alias.empty()) {
      CHECK(entry.horovod_alias.starts_with("HOROVOD_"));
      CHECK(names.insert(entry.horovod_alias).second);
    }
  }
}

TEST_CASE("garbage in any variable is a UsageError that quotes it and says what is accepted") {
  const std::map<std::string, std::vector<std::string>> garbage = {
      {"RONDE_FUSION_BYTES",
       {"", " ", "-1", "+1", "64Mo", "64MiB ", " 64MiB", "64 MiB", "0x40", "1e6", "nan", "1.5",
        "1.", ".5MiB", "1.2345MiB", "0.3KiB", "64mib", "2TiB", "99999999999999999999"}},
      {"RONDE_CYCLE_TIME_MS", {"", "-0.5", "nan", "inf", "1ms", "1 ", "fast", "60001", "1e400"}},
      {"RONDE_CACHE_CAPACITY", {"", "-1", "1.0", "1k", "1048577", "many"}},
      {"RONDE_FREEZE_AFTER_STEPS", {"", "-1", "2.5", "1000001", "never"}},
      {"RONDE_SYMMETRIC_HEAP_BYTES", {"", "-1", "2TiB", "all"}},
      {"RONDE_CPU_BACKEND", {"", "MPI", "a b", "mpi,shm"}},
      {"RONDE_FABRIC", {"", "tcp", "UCX"}},
      {"RONDE_ALLREDUCE", {"", "chain", "Ring"}},
      {"RONDE_BROADCAST", {"", "ring", "tree"}},
      {"RONDE_ALLGATHER", {"", "halving"}},
      {"RONDE_REDUCESCATTER", {"", "halving_doubling"}},
      {"RONDE_ALLTOALL", {"", "ring"}},
      {"RONDE_ALGORITHMS",
       {" ", "ring", "allreduce:ring,", "allreduce:chain", "allreduce:ring;alltoall:bruck",
        "allreduce:ring@1MiB,allreduce:pairwise@1KiB"}},
      {"RONDE_STALL_WARN_S", {"", "-1", "nan", "30s", "1e10"}},
      {"RONDE_STALL_ABORT_S", {"-0.001", "never", "NaN"}},
      {"RONDE_INIT_TIMEOUT_S", {"0", "-5", "inf"}},
      {"RONDE_SHUTDOWN_TIMEOUT_S", {"", "-1", "soon"}},
      {"RONDE_LOG_LEVEL", {"", "INF", "verbose", "2"}},
      {"RONDE_COMPUTE_THREADS", {"-1", "2.0", "4097", "two"}},
      {"RONDE_EXACT", {"", "2", "yes", "-1"}},
      {"RONDE_JOIN_AVERAGE", {"", "some", "ALL", "all "}},
      {"RONDE_CHECK_REPLICAS", {"", "0", "-1", "1.5", "First", "never", "off ", "1000000001"}},
      {"RONDE_VERIFY", {"", "2", "on", "-1"}},
      {"RONDE_GPU_BACKEND", {"", "NCCL", "nccl,mpi"}},
      {"RONDE_CUDA_IPC", {"", "2", "on", "-1"}},
      {"RONDE_CUDA_IPC_DIRECT_BYTES", {"", "-1", "never"}},
      {"RONDE_GPU_AWARE_MPI", {"", "yes", "auto", "01"}},
      {"RONDE_REGISTRATION_CACHE", {"", "yes", "true", "01"}},
      {"RONDE_REGISTRATION_CACHE_BYTES", {"", "-1", "2TiB"}},
      {"RONDE_VISIBLE_DEVICES",
       {",", "GPU-0,", ",GPU-0", "0", "GPU-0, GPU-1", "GPU-", "MIG-1", "GPU-XY"}},
      {"RONDE_PROCESS_SETS", {";", "0;", ";0", "0,;1", "-1", "0 1", "all"}},
      {"RONDE_HOST_ID", {"a b", "tab\t", std::string(256, 'x')}},
      {"RONDE_PORT", {"", "-1", "65536", "http", "80 "}},
      {"RONDE_PORT_RANGE",
       {"0-9", "20000", "20000-", "-20000", "9-8", "1-65536", "1-2-3", "any", "1 - 2"}},
      {"RONDE_AUTOTUNE", {"", "2", "on"}},
      {"RONDE_AUTOTUNE_LOG", {"a\nb"}},
      {"RONDE_TUNED", {"a\nb", "\x7f"}},
      {"RONDE_EVENTS", {"", "-1", "2.5", "many", "1073741825"}},
      {"RONDE_PROFILE", {"0", "yes", "run.txt"}},
      {"RONDE_TIMELINE", {"a\nb"}},
      {"RONDE_DUMP", {"\t"}},
      {"RONDE_DUMP_ON_SIGUSR2", {"", "2", "SIGUSR2"}},
      {"RONDE_METRICS", {":9187", "9187", "run.json", "a\nb.prom"}},
      {"RONDE_TOP", {"", "2", "on"}},
      {"RONDE_THREAD_AFFINITY", {",", "0,", ",0", "0;1", "-1", "0, 1", "a", "99999999999"}},
  };
  REQUIRE(garbage.size() + 1 == ronde::config_table().size());  // RONDE_JOB_KEY is not quoted
  for (const auto& [name, texts] : garbage) {
    for (const std::string& text : texts) {
      INFO(name << "=\"" << text << "\"");
      const std::string error = error_of({{name, text}});
      CHECK(error.starts_with(name + ": \"" + text + "\""));
      CHECK(error.size() > name.size() + text.size() + 20);  // and then what is accepted
    }
  }
  CHECK_THAT(error_of({{"RONDE_FUSION_BYTES", "64Mo"}}),
             Contains("is not a size") && Contains("64MiB"));
  CHECK_THAT(error_of({{"RONDE_CYCLE_TIME_MS", "-1"}}),
             Contains("a number from 0 to 60000, without a unit"));
  CHECK_THAT(error_of({{"RONDE_INIT_TIMEOUT_S", "0"}}), Contains("above 0"));
  CHECK_THAT(error_of({{"RONDE_METRICS", ":9187"}}),
             Contains("the path of a FILE.prom, which node_exporter's textfile collector reads"));
}

TEST_CASE("the key of the job is never printed, not even where it is refused") {
  const std::string secret = "correct horse battery";
  const LoadedConfig loaded = load({{"RONDE_JOB_KEY", secret}});
  CHECK(loaded.config.job_key == secret);
  CHECK_THAT(ronde::describe(loaded), Contains("RONDE_JOB_KEY=(set, not shown)"));
  const std::string fingerprint = ronde::group_wide_fingerprint(loaded.config);
  CHECK_THAT(fingerprint, Contains("RONDE_JOB_KEY=(set, not shown)") && !Contains("horse"));
  for (const std::string& wrong : {std::string("short secret"), std::string(1025, 'x')}) {
    CHECK_THAT(error_of({{"RONDE_JOB_KEY", wrong}}),
               Catch::StartsWith("RONDE_JOB_KEY: it has " + std::to_string(wrong.size())) &&
                   Contains("16 to 1024") && !Contains(wrong));
  }
}

TEST_CASE("sizes are read exactly, and written with the largest binary unit that divides them") {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [text, bytes] :
       std::map<std::string, std::uint64_t>{{"0", 0},
                                            {"67108864", 67108864},
                                            {"17B", 17},
                                            {"3kB", 3000},
                                            {"64MB", 64'000'000},
                                            {"64MiB", 64 << 20},
                                            {"1.5GiB", 3ull << 29},
                                            {"0.1GB", 100'000'000},
                                            {"0.125KiB", 128},
                                            {"18446744073709551615", kMost},
                                            {"16777215.5TiB", 0xFFFF'FF80'0000'0000ull}}) {
    CAPTURE(text);
    CHECK(ronde::parse_bytes(text) == bytes);
  }
  CHECK_THROWS_AS(ronde::parse_bytes("16777216TiB"), UsageError);
  CHECK_THROWS_AS(ronde::parse_bytes("18446744073709551616"), UsageError);
  for (const auto& [bytes, text] :
       std::map<std::uint64_t, std::string>{{0, "0"},
                                            {1, "1"},
                                            {1000, "1000"},
                                            {1023, "1023"},
                                            {1024, "1KiB"},
                                            {1025, "1025"},
                                            {3 << 19, "1536KiB"},
                                            {64 << 20, "64MiB"},
                                            {(1 << 30) + 1, "1073741825"},
                                            {1ull << 43, "8TiB"}}) {
    CHECK(ronde::format_bytes(bytes) == text);
    CHECK(ronde::parse_bytes(text) == bytes);
  }
}

TEST_CASE("a Horovod variable is read when ours is unset, and errors name it") {
  const LoadedConfig loaded = load({{"HOROVOD_FUSION_THRESHOLD", "1048576"},
                                    {"HOROVOD_CACHE_CAPACITY", "0"},
                                    {"HOROVOD_STALL_CHECK_TIME_SECONDS", "60"},
                                    {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0"},
                                    {"HOROVOD_THREAD_AFFINITY", "1,2"}});
  CHECK(loaded.warnings.empty());
  CHECK(loaded.config.fusion_bytes == 1u << 20);
  CHECK(loaded.config.cache_capacity == 0);
  CHECK(loaded.config.stall_warn_s == 60);
  CHECK(loaded.config.stall_abort_s == 0);
  CHECK(loaded.config.thread_affinity == "1,2");
  CHECK(source_of(loaded, "RONDE_FUSION_BYTES") == "HOROVOD_FUSION_THRESHOLD");

  const LoadedConfig ours =
      load({{"HOROVOD_FUSION_THRESHOLD", "nonsense"}, {"RONDE_FUSION_BYTES", "2MiB"}});
  CHECK(ours.config.fusion_bytes == 2u << 20);
  CHECK(source_of(ours, "RONDE_FUSION_BYTES") == "RONDE_FUSION_BYTES");

  CHECK_THAT(error_of({{"HOROVOD_FUSION_THRESHOLD", "128MO"}}),
             Contains("HOROVOD_FUSION_THRESHOLD: \"128MO\""));
}

TEST_CASE("what Horovod's launcher sets is taken in any case, without a word") {
  struct Row {
    const char *alias, *text, *name, *value;
  };
  for (const auto& [alias, text, name, value] : std::vector<Row>{
           {"HOROVOD_CPU_OPERATIONS", "gloo", "RONDE_CPU_BACKEND", "auto"},
           {"HOROVOD_CPU_OPERATIONS", "CCL", "RONDE_CPU_BACKEND", "auto"},
           {"HOROVOD_CPU_OPERATIONS", "Mpi", "RONDE_CPU_BACKEND", "mpi"},
           {"HOROVOD_LOG_LEVEL", "FATAL", "RONDE_LOG_LEVEL", "error"},
           {"HOROVOD_LOG_LEVEL", "WARNING", "RONDE_LOG_LEVEL", "warning"},
           {"HOROVOD_LOG_LEVEL", "Debug", "RONDE_LOG_LEVEL", "debug"},
           {"HOROVOD_LOG_LEVEL", "TRACE", "RONDE_LOG_LEVEL", "trace"},
           {"HOROVOD_TIMELINE", "DYNAMIC", "RONDE_TIMELINE", ""},
           {"HOROVOD_TIMELINE", "/tmp/t.json", "RONDE_TIMELINE", "/tmp/t.json"},
           // The launcher multiplies MiB of its file; a fraction of them makes a float.
           {"HOROVOD_FUSION_THRESHOLD", "524288.0", "RONDE_FUSION_BYTES", "512KiB"},
           {"HOROVOD_CYCLE_TIME", "3.5", "RONDE_CYCLE_TIME_MS", "3.5"}}) {
    const LoadedConfig loaded = load({{alias, text}});
    CAPTURE(alias, text);
    CHECK(loaded.warnings.empty());
    CHECK(source_of(loaded, name) == alias);
    CHECK(std::ranges::find(loaded.sources, name, &ronde::ConfigSource::name)->value == value);
  }
  CHECK_THAT(error_of({{"RONDE_CPU_BACKEND", "Mpi"}}), Contains("RONDE_CPU_BACKEND: \"Mpi\""));
}

TEST_CASE("a stall limit of Horovod's that is set alone moves the default of the other") {
  const Config late = load({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "900"}}).config;
  CHECK((late.stall_warn_s == 900 && late.stall_abort_s == 0));
  const LoadedConfig early = load({{"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "20"}});
  CHECK((early.config.stall_warn_s == 20 && early.config.stall_abort_s == 20));
  CHECK_THAT(describe(early), Contains("RONDE_STALL_WARN_S=20 (default)"));
  CHECK_THAT(
      error_of({{"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "20"}, {"RONDE_STALL_WARN_S", "40"}}),
      Contains("RONDE_STALL_ABORT_S=20"));
}

TEST_CASE("an unknown variable warns with the nearest known one") {
  const std::map<std::string, std::string> nearest = {
      {"RONDE_FUSION_BYTE", "RONDE_FUSION_BYTES"},
      {"RONDE_FUSION_THRESHOLD", "RONDE_FUSION_BYTES"},
      {"RONDE_CYCLE_TIME", "RONDE_CYCLE_TIME_MS"},
      {"RONDE_STALL_WARNS", "RONDE_STALL_WARN_S"},
      {"RONDE_LOGLEVEL", "RONDE_LOG_LEVEL"}};
  for (const auto& [unknown, known] : nearest) {
    const LoadedConfig loaded = load({{unknown, "1"}});
    REQUIRE(loaded.warnings.size() == 1);
    CHECK_THAT(loaded.warnings[0],
               Contains(unknown + " is not a variable") && Contains("did you mean " + known + "?"));
    CHECK(loaded.config.fusion_bytes == Config().fusion_bytes);
  }
  // Those of others, of the scripts and of the tests do not.
  for (const char* const foreign : {"PATH", "RONDE_TEST_DEADLINE_S", "RONDE_VENV", "RONDE_MINUTES",
                                    "XRONDE_FUSION_BYTES", "XHOROVOD_TIMELINE"}) {
    CHECK(load({{foreign, "1"}}).warnings.empty());
  }
}

TEST_CASE("NCCL's streams, of which there is one, have no effect under either name") {
  CHECK(load({{"RONDE_NCCL_STREAMS", "4"}}).warnings ==
        std::vector<std::string>{
            "RONDE_NCCL_STREAMS has no effect: NCCL has one stream for each process set"});
  CHECK(load({{"HOROVOD_NUM_NCCL_STREAMS", "4"}}).warnings ==
        std::vector<std::string>{"Ronde does not read HOROVOD_NUM_NCCL_STREAMS: "
                                 "docs/coming_from_horovod.md says what to set instead"});
}

TEST_CASE("all variables of Horovod that are not read are in one warning") {
  const LoadedConfig loaded = load({{"HOROVOD_TIMELINE_MARK_CYCLES", "1"},
                                    {"HOROVOD_FUSION_THRESHOLD", "1048576"},
                                    {"HOROVOD_ELASTIC", "1"}});
  CHECK(loaded.warnings == std::vector<std::string>{
                               "Ronde does not read HOROVOD_ELASTIC, HOROVOD_TIMELINE_MARK_CYCLES: "
                               "docs/coming_from_horovod.md says what to set instead"});
  CHECK(loaded.config.fusion_bytes == 1u << 20);
  for (const ConfigEntry& entry : ronde::config_table()) {
    if (entry.horovod_alias.empty()) continue;
    INFO(entry.horovod_alias);
    CHECK(load({{entry.horovod_alias, entry.get(Config())}}).warnings.empty());
  }
}

TEST_CASE("a stall limit below the report is refused, zero means never") {
  CHECK_THAT(error_of({{"RONDE_STALL_ABORT_S", "10"}}),
             Contains("RONDE_STALL_ABORT_S=10") && Contains("RONDE_STALL_WARN_S=30"));
  CHECK_NOTHROW(load({{"RONDE_STALL_ABORT_S", "0"}}));
  CHECK_NOTHROW(load({{"RONDE_STALL_ABORT_S", "10"}, {"RONDE_STALL_WARN_S", "0"}}));
  CHECK_NOTHROW(load({{"RONDE_STALL_ABORT_S", "10"}, {"RONDE_STALL_WARN_S", "10"}}));
}

TEST_CASE("every group-wide variable takes part in the comparison, and no per-rank one does") {
  for (const ConfigEntry& entry : ronde::config_table()) {
    Config config;
    entry.set(config, kOther.at(entry.name));
    const std::string text =
        config_difference({group_wide_fingerprint(Config()), group_wide_fingerprint(config)});
    const std::string difference =
        "\n  " + entry.name + ": rank 0: " + entry.get(Config()) + ", rank 1: " + entry.get(config);
    CAPTURE(entry.name);
    CHECK(text.empty() == (entry.scope == ConfigScope::PerRank));
    if (!text.empty()) CHECK_THAT(text, Contains(difference));
  }
  CHECK(config_difference({}).empty());
}

TEST_CASE("a difference lists each variable, or each reason not to start, once with its ranks") {
  Config small;
  small.fusion_bytes = 32u << 20;
  small.cycle_time_ms = 5;
  const std::string base = group_wide_fingerprint(Config());
  const std::string text =
      config_difference({base, base, base, group_wide_fingerprint(small), base});
  CHECK_THAT(text, Contains("\n  RONDE_FUSION_BYTES: ranks 0-2,4: 64MiB, rank 3: 32MiB"));
  CHECK_THAT(text, Contains("\n  RONDE_CYCLE_TIME_MS: ranks 0-2,4: 1, rank 3: 5"));
  CHECK_THAT(text, !Contains("RONDE_CACHE_CAPACITY"));
  CHECK_THAT(config_difference({base, base + "RONDE_NEW=1\n"}),
             Contains("RONDE_NEW: rank 0: (unknown to its Ronde), rank 1: 1"));
  // Ranks that cannot start are all that is reported.
  const std::string bad = ronde::failed_fingerprint("RONDE_X: \"a=b\" is bad");
  CHECK(config_difference({base, bad, base, bad}) == "ranks 1,3: RONDE_X: \"a=b\" is bad");
  CHECK(config_difference({bad, ronde::failed_fingerprint("another")}) ==
        "rank 0: RONDE_X: \"a=b\" is bad\nrank 1: another");
}

TEST_CASE("the affinity list gives each local rank its core") {
  Config config;
  CHECK_FALSE(ronde::affinity_core(config, 0, 4));
  config.thread_affinity = "3,1,5";
  CHECK(ronde::affinity_core(config, 0, 3) == 3);
  CHECK(ronde::affinity_core(config, 2, 3) == 5);
  CHECK(ronde::affinity_core(config, 1, 2) == 1);
  CHECK_THROWS_WITH(ronde::affinity_core(config, 0, 4), Contains("RONDE_THREAD_AFFINITY") &&
                                                            Contains("lists 3 cores") &&
                                                            Contains("4 ranks of this host"));
}

}  // namespace
