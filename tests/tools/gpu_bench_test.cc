// SPDX-License-Identifier: Apache-2.0
#include "tests/support/processes/beside.h"
#include "tests/tools/bench_command.h"
#include "tools/bench/benchmarks/benchmarks.h"

namespace {

using Catch::Contains;
using namespace ronde::test;

/// Runs `bench setups` on a small scale, on fake GPUs.
CommandResult run_setups(int ranks, const Words& more) {
  Words words = {"setups", "--min",   "4KiB", "--max",    "8KiB", "--model",
                 "edsr",   "--iters", "2",    "--warmup", "0"};
  words.insert(words.end(), more.begin(), more.end());
  return run_bench(ranks, words, FAKE_GPU_BENCH);
}

nlohmann::json row_with(const nlohmann::json& rows, const char* key, const nlohmann::json& value) {
  for (const nlohmann::json& row : rows) {
    if (row.contains(key) && row.at(key) == value) return row;
  }
  FAIL("no row with " << key << " " << value);
  return {};
}

}  // namespace

TEST_CASE(
    "bench setups: every cuda set-up has a time for each size and for each class of messages") {
  const int ranks = RONDE_MPI_IS_LINKED ? GENERATE(1, 2) : 1;
  const JsonFile file;
  const auto result = ended(0, run_setups(ranks, {"--json", file.path()}));
  const nlohmann::json rows = file.rows();
  const auto is_time = [](const nlohmann::json& row, const char* key) {
    return row.at(key).is_number() && row.at(key).get<double>() > 0;
  };
  for (const int bytes : {4096, 8192}) {
    const nlohmann::json row = row_with(rows, "bytes", bytes);
    for (const char* const key : {"copy_us", "mpi_us", "mpi-reg_us", "mpi-opt_us",
                                  "mpi-opt-nocache_us", "mpi-opt-nocache_over_mpi-opt"}) {
      CHECK(is_time(row, key));
    }
    CHECK(row.at("ranks") == ranks);
    CHECK(row.at("sync-flags_us").is_null());  // there is nobody to wait for
  }
  const nlohmann::json all = row_with(rows, "class", "all");
  CHECK(all.at("bytes") == 5'479'436);
  CHECK(is_time(all, "mpi-opt_ms"));
  CHECK((result.out.find("ranks share this GPU") != std::string::npos) == (ranks > 1));
  // Each process has a GPU of its own, in truth: the trial finds that out.
  if (ranks == 2) CHECK_THAT(result.err, Contains("CUDA IPC cannot be used"));
}

TEST_CASE("bench setups: only the cuda set-ups that are asked for are measured") {
  const JsonFile file;
  const auto result = ended(0, run_setups(1, {"--setup", "mpi-reg", "--json", file.path()}));
  const nlohmann::json row = row_with(file.rows(), "bytes", 8192);
  CHECK(row.at("mpi-reg_us").is_number());
  CHECK_FALSE(row.contains("mpi_us"));
}

TEST_CASE("bench of cuda buffers: every collective gives the right result on a fake GPU") {
  const int ranks = RONDE_MPI_IS_LINKED ? GENERATE(1, 3) : 1;
  for (const ronde::tool::CollectiveBenchmark& benchmark : ronde::tool::collective_benchmarks()) {
    if (benchmark.output == ronde::tool::Extent::Nothing) continue;
    const auto result =
        ended(0, run_bench(ranks,
                           {std::string(benchmark.name), "--device", "cuda", "--backend", "fake",
                            "--max", "1KiB", "--iters", "2", "--dtype", "bf16"},
                           FAKE_GPU_BENCH));
    CHECK_THAT(result.out, Contains("backend fake"));
  }
}

TEST_CASE("bench of cuda buffers: what cannot be is refused, with what can") {
  struct Refusal {
    CommandResult result;
    Words words;
  };
  for (const auto& [result, words] :
       {Refusal{run_bench(1, {"setups"}), {"there is no GPU to measure", "libcuda.so.1"}},
        Refusal{run_setups(1, {"--setup", "mpi-opt,mine"}), {"--setup", "mine", "mpi-reg"}},
        Refusal{run_bench(1, {"allreduce", "--device", "cuda"}), {"--device cuda", "ronde info"}},
        Refusal{run_bench(1, {"allreduce", "--device", "cuda", "--raw"}), {"bench setups"}},
        Refusal{run_bench(1, {"allreduce", "--device", "tpu"}), {"tpu", "cpu, cuda"}}}) {
    INFO(words.front() << ": " << result.err);
    CHECK(result.exit_code == 2);
    for (const std::string& word : words) CHECK_THAT(result.err, Contains(word));
  }
}
