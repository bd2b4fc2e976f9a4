// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ronde/dtype.h"
#include "ronde/ronde.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/processes/beside.h"
#include "tests/tools/bench_command.h"
#include "tools/bench/benchmarks/benchmarks.h"
#include "tools/bench/subjects/peers.h"

namespace {

using Catch::Contains;
using nlohmann::json;
using namespace ronde::test;
using namespace std::string_literals;

std::vector<int> rank_counts() {
  return RONDE_MPI_IS_LINKED ? std::vector{1, 2, 3} : std::vector{1};
}

void check_times(const json& row) {
  CHECK(row.at("min_us") > 0.0);
  CHECK(row.at("min_us") <= row.at("p50_us"));
  CHECK(row.at("p50_us") <= row.at("p99_us"));
}

void check_bandwidth(const json& row, double bus_factor) {
  const double algorithm = row.at("bytes").get<double>() / (1e3 * row.at("p50_us").get<double>());
  CHECK(row.at("algbw_gbs").get<double>() == Approx(algorithm));
  CHECK(row.at("busbw_gbs").get<double>() == Approx(bus_factor * algorithm));
}

void check_baseline(const json& row, const char* ours, const char* baseline) {
  if (!RONDE_MPI_IS_LINKED) {
    CHECK(row.at("ratio").is_null());
    return;
  }
  CHECK(row.at(baseline) > 0.0);
  CHECK(row.at("ratio").get<double>() ==
        Approx(row.at(baseline).get<double>() / row.at(ours).get<double>()));
  CHECK((row.at("regime") == "near" || row.at("regime") == "far"));
  CHECK(row.at("thread_level") == "MPI_THREAD_SERIALIZED");
}

void check_collective(const ronde::tool::CollectiveBenchmark& benchmark, int ranks) {
  INFO(benchmark.name << " on " << ranks);
  const bool has_data = benchmark.output != ronde::tool::Extent::Nothing;
  // MPI's blocking calls spin, and take long where ranks outnumber cores.
  const bool compares = ranks < 3;
  Words words = {std::string(benchmark.name)};
  if (compares) words.push_back("--baseline");
  if (has_data) words.insert(words.end(), {"--min", "64", "--max", "256"});
  const json rows = rows_of(ranks, words);
  REQUIRE(rows.size() == (has_data ? 3 : 1));
  for (const json& row : rows) {
    CHECK((row.at("device") == "cpu" && row.contains("backend")));
    CHECK(row.at("benchmark") == std::string(benchmark.name));
    CHECK(row.at("ranks") == ranks);
    CHECK(row.at("iterations") == 2);
    check_times(row);
    if (compares) check_baseline(row, "p50_us", "baseline_p50_us");
    if (has_data) check_bandwidth(row, benchmark.bus_factor(ranks));
  }
  if (ranks < rank_counts().back()) return;
  const Words one_size = has_data ? Words{"--min", "64", "--max", "64"} : Words();
  for (const char* const way : {"raw", "prepared"}) {
    if (!has_data && way == "raw"s) continue;
    Words alone = {words[0], "--"s + way};
    alone.insert(alone.end(), one_size.begin(), one_size.end());
    const json one = rows_of(ranks, alone, "1");
    REQUIRE(one.size() == 1);
    CHECK(one[0].at(way) == true);
  }
}

TEST_CASE("every collective runs on 1, 2 and 3 ranks, alone too, and is compared with MPI") {
  for (const int ranks : rank_counts()) {
    for (const auto& benchmark : ronde::tool::collective_benchmarks()) {
      check_collective(benchmark, ranks);
    }
  }
}

void check_exchange(const json& row, const char* model, int tensors, int bytes) {
  INFO(row);
  CHECK(row.at("model") == model);
  CHECK(row.at("tensors") == tensors);
  CHECK(row.at("bytes") == bytes);
  CHECK(row.at("p50_ms") > 0.0);
  CHECK(row.at("floor_ms") > 0.0);
  CHECK((row.at("packed_baseline_ms").is_null() || row.at("packed_baseline_ms") > 0.0));
  check_baseline(row, "p50_ms", "baseline_ms");
}

TEST_CASE("exchange runs on one and two ranks, with a row a model, and without a baseline") {
  // The numbers of parameters that torchvision and the EDSR paper's code give, of 4 bytes each.
  const json rows = rows_of(1, {"exchange", "--model", "edsr,resnet18,resnet50,edsr-full"}, "1");
  REQUIRE(rows.size() == 4);
  check_exchange(rows[0], "edsr", 72, 5479436);
  check_exchange(rows[1], "resnet18", 62, 46758048);
  check_exchange(rows[2], "resnet50", 161, 102228128);
  check_exchange(rows[3], "edsr-full", 136, 162918412);
  if (RONDE_MPI_IS_LINKED) {
    check_exchange(rows_of(2, {"exchange", "--model", "edsr"}, "1").at(0), "edsr", 72, 5479436);
  }
  const json row =
      rows_of(1, {"exchange", "--model", "edsr", "--no-baseline", "--prepared"}, "1").at(0);
  CHECK(row.at("prepared") == true);
  CHECK(row.at("submit_us") > 0.0);
  CHECK(row.at("p50_ms") > 0.0);
  CHECK(row.at("baseline_ms").is_null());
  CHECK(row.at("ratio").is_null());
}

TEST_CASE("every type is right, and a half that is sent, by the engine and the backend alone") {
  const int ranks = rank_counts().size() > 1 ? 2 : 1;
  for (const ronde::DataType dtype : ronde::kAllDataTypes) {
    const std::string name(to_string(dtype));
    INFO(name);
    Words words = {"allreduce", "--dtype", name, "--min", "1000", "--max", "1000"};
    const std::size_t bytes = (1000 + size_of(dtype) - 1) / size_of(dtype) * size_of(dtype);
    CHECK(rows_of(ranks, words, "1").at(0).at("bytes") == bytes);
    words.insert(words.end(), {"--raw", "--rotate", "16KiB"});
    const json row = rows_of(ranks, words, "1").at(0);
    CHECK(row.at("dtype") == name);
    CHECK(row.at("raw") == true);
    CHECK(row.at("rotate_bytes") == 16384);
    CHECK(row.at("ratio").is_null());
    CHECK(row.at("regime").is_null());
  }
  Words words = {"allreduce", "--wire-dtype", "bf16", "--min", "1000", "--max", "1000"};
  CHECK(rows_of(ranks, words, "1").at(0).at("wire_dtype") == "bf16");
  words.emplace_back("--raw");
  const json row = rows_of(ranks, words, "1").at(0);
  CHECK(row.at("dtype") == "f32");
  CHECK(row.at("wire_dtype") == "bf16");
}

TEST_CASE("sizes double, and what the ranks share is rounded up to equal parts") {
  const int ranks = rank_counts().back();
  std::vector<int> sizes;
  for (const json& row :
       rows_of(ranks, {"allgather", "--min", "1", "--max", "100", "--raw"}, "1")) {
    sizes.push_back(row.at("bytes"));
  }
  if (ranks == 3) CHECK(sizes == std::vector{12, 24, 36, 72});
  if (ranks == 1) CHECK(sizes == std::vector{4, 8, 16, 32, 64});
}

struct Refusal {
  Words words;
  std::string reason;
};

TEST_CASE("nonsense on the command line is refused with exit code 2 and a reason") {
  const std::vector<Refusal> rows = {
      {{"allreduce", "--min", "4KiB", "--max", "1KiB"}, "--min (4KiB) is above --max (1KiB)"},
      {{"allreduce", "--min", "lots"}, "--min: \"lots\""},
      {{"allreduce", "--min", "0"}, "--min: at least one byte"},
      {{"allreduce", "--rotate", "round"}, "--rotate: \"round\""},
      {{"allreduce", "--dtype", "f8"}, "--dtype: there is no element type \"f8\"; use one of: u8,"},
      {{"allreduce", "--wire-dtype", "f32"}, "--wire-dtype: f32 cannot be sent as f32"},
      {{"allreduce", "--wire-dtype", "f8"}, "--wire-dtype: there is no element type \"f8\""},
      {{"allreduce", "--wire-dtype", "f16", "--dtype", "i32"}, "i32 cannot be sent as f16"},
      {{"broadcast", "--wire-dtype", "f16"}, "--wire-dtype"},
      {{"broadcast", "--iters", "0"}, "--iters"},
      {{"broadcast", "--warmup", "-1"}, "--warmup"},
      {{"allgather", "--backend", "fax", "--max", "4"}, "\"fax\""},
      {{"allgather", "--backend", "fax", "--raw", "--max", "4"}, "'fax'"},
      {{"barrier", "--raw"}, "barrier is done by the coordinator alone"},
      {{"barrier", "--max", "4"}, "--max"},
      {{"exchange", "--model", "alexnet"}, "--model: there is no list \"alexnet\""},
      {{"exchange", "--dtype", "f32"}, "--dtype"},
      {{"exchange", "--rotate"}, "--rotate"},
      {{"exchange", "--json", "/no/such/folder/file"},
       "--json: cannot write \"/no/such/folder/file\""},
      {{"gather"}, ""},
      {{}, ""},
  };
  for (const auto& [words, reason] : rows) {
    const CommandResult result = run_bench(0, words);
    INFO(reason << ": " << result.out);
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Contains(reason));
    CHECK_FALSE(result.err.empty());
  }
}

TEST_CASE("of several ranks one says what is wrong") {
  if (!RONDE_MPI_IS_LINKED) return;
  for (const auto& [words, reason] : std::vector<Refusal>{
           {{"allreduce", "--max", "no"}, "--max: \"no\""},
           {{"allreduce", "--no-such-option"}, "--no-such-option"},
           {{"allreduce", "--json", "/no/such/file"}, "--json: cannot write"},
           {{"allreduce", "--raw", "--backend", "fax"}, "'fax'"},
           {{"allreduce", "--baseline", "--dtype", "bf16"}, "MPI has no type for bf16"}}) {
    const auto result = ended(2, run_bench(2, words));
    CHECK(occurrences(result.err, reason) == 1);
    CHECK(occurrences(result.err, "without ronde::shutdown()") == 0);
  }
}

TEST_CASE("of torchrun's ranks rank 0 says what is wrong, whatever srun numbers") {
  for (const std::string rank : {"0", "1"}) {
    for (const std::string node : {"0", "1"}) {
      const auto result = ended(
          2, run_program({RONDE_COMMAND, "bench", "gather"},
                         {{"TORCHELASTIC_RUN_ID", "a job"}, {"RANK", rank}, {"PMI_RANK", node}}));
      CHECK(result.err.empty() == (rank != "0"));
    }
  }
}

TEST_CASE("a backend whose first or last result is wrong is found out") {
  // With one warm-up and two timed calls the check before is operation 1, the timed ones are 3 and
  // 4, and the check behind them is 5. What 2 to 4 do wrong stays in the memory that they share.
  for (const int ranks : rank_counts()) {
    for (const char* const operation : {"1", "2", "4", "5", "6"}) {
      INFO(operation << " on " << ranks);
      const CommandResult result =
          run_bench(ranks,
                    {"allreduce", "--backend", std::string("wrong-in-the-") + operation, "--min",
                     "1KiB", "--max", "1KiB", "--iters", "2", "--warmup", "1", "--dtype", "u8"},
                    WRONG_BENCH);
      INFO(result.out << result.err);
      if (operation == "6"s) {
        CHECK(result.exit_code == 0);
        continue;
      }
      CHECK(result.exit_code == 1);
      // A later sum spreads what the second one did wrong to all ranks.
      const std::string who = "rank " + std::to_string(operation == "2"s ? 0 : ranks - 1);
      CHECK(occurrences(result.err,
                        "ronde bench: " + who + ": the result of allreduce (1 KiB, u8, by " +
                            "wrong-in-the-" + operation + ") is wrong: element 0 is ") == 1);
      CHECK(occurrences(result.err, "without ronde::shutdown()") == 0);
    }
  }
}

/// Three ranks of `ronde run`, which MPI knows nothing of.
CommandResult run_without_mpi(const Words& command) {
  Words line = {RONDE_COMMAND, "run", "-n", "3", "--plain", "--"};
  line.insert(line.end(), command.begin(), command.end());
  return run_program(line);
}

TEST_CASE(
    "every benchmark runs under ronde run, where it once called an MPI that had not started") {
  std::vector<Words> benchmarks = {{"exchange", "--model", "edsr"}, {"barrier", "--baseline"}};
  for (const auto& benchmark : ronde::tool::collective_benchmarks()) {
    if (benchmark.kind == ronde::Collective::Barrier) continue;
    for (const char* const how : {"--baseline", "--raw"}) {
      benchmarks.push_back({std::string(benchmark.name), how, "--min", "64", "--max", "128"});
    }
  }
  for (const Words& words : benchmarks) {
    const JsonFile file;
    Words command = {RONDE_COMMAND, "bench", "--iters", "2",
                     "--warmup",    "1",     "--json",  file.path()};
    command.insert(command.begin() + 2, words.begin(), words.end());
    const CommandResult result = run_without_mpi(command);
    INFO(words[0] << " " << words[1] << "\n" << result.out << result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(Contains("no plain MPI to compare with").match(result.out) == (words[1] != "--raw"));
    for (const json& row : file.rows()) {
      CHECK(row.at("ranks") == 3);
      CHECK((row.at("ratio").is_null() && row.at("regime").is_null()));
    }
  }
}

TEST_CASE("helper: a rank in step", "[.]") {
  using Seconds = std::chrono::duration<double>;
  const auto now = [] { return Seconds(std::chrono::steady_clock::now().time_since_epoch()); };
  ronde::init();
  const int rank = ronde::rank();
  for (const bool oversubscribed : {true, false}) {
    const auto peers = ronde::tool::make_peers(oversubscribed);
    for (int step = 1; step <= 50; ++step) {
      const Seconds came = now();
      peers->barrier();
      std::vector<double> values = {came.count(), -now().count(), 1.0 * rank * step};
      peers->maximum(values);
      CHECK(values[0] <= -values[1]);  // all came before one left
      CHECK(values[2] == 2.0 * step);
      const std::string text = std::to_string(rank) + std::string(step, '\0');
      const std::vector<std::string> all = peers->all_of(text);
      CHECK((all.size() == 3 && all[rank] == text && all[2].front() == '2'));
    }
  }
  ronde::shutdown();
}

TEST_CASE("ranks without MPI are in step, and report what another one found wrong") {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const auto steps = ended(0, run_without_mpi({program, "helper: a rank in step"}));
  const auto wrong = ended(1, run_without_mpi({WRONG_BENCH, "bench", "allreduce", "--backend",
                                               "wrong-in-the-5", "--min", "1KiB", "--max", "1KiB",
                                               "--iters", "2", "--warmup", "1", "--dtype", "u8"}));
  CHECK_THAT(wrong.err, Contains("ronde bench: rank 2: the result of allreduce"));
}

}  // namespace
