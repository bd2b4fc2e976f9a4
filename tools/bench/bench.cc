// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "backends/launcher.h"
#include "tools/bench/benchmarks/benchmarks.h"
#include "tools/commands.h"

namespace ronde::tool {
namespace {

using Benchmark = std::function<void(Session&)>;

}  // namespace

int run_session(const std::string& name, const BenchOptions& options, const GpuAccess& access,
                const Benchmark& benchmark) {
  const bool reports = launched_rank() == 0;
  const auto measure = [&] {
    check_bench_options(options);
    Session session(options, access);
    try {
      session.open_json();
      benchmark(session);
    } catch (const UsageError&) {
      session.close();
      throw;
    } catch (const CommonError& error) {
      session.close();
      if (reports) complain(name, error.what());
      return EXIT_FAILURE;
    }
    session.close();
    return EXIT_SUCCESS;
  };
  return exit_code_of(name, measure, reports);
}

int launched_rank() {
  const EnvironmentLookup variables = process_environment();
  // Under torchrun, MPI's variables describe its agent, and are the same for all its ranks.
  const char* const first = variables("TORCHELASTIC_RUN_ID") ? "RANK" : "PMI_RANK";
  for (const char* const name :
       {first, "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID"}) {
    if (const std::optional<int> rank = detail::number_in(variables, name)) return *rank;
  }
  return 0;
}

void add_bench(CLI::App& app, int& exit_code, const GpuAccess& access) {
  auto* const bench = app.add_subcommand(
      "bench", "Measure the collectives of all ranks: start it with mpiexec or another launcher");
  bench->require_subcommand(1);
  const auto add = [&](std::string_view name, std::string_view help,
                       const std::set<std::string>& options_of, Benchmark benchmark) {
    auto* const command = bench->add_subcommand(std::string(name), std::string(help));
    const auto options = std::make_shared<BenchOptions>();
    options->baseline = options_of.contains("--no-baseline");
    options->raw = options_of.contains("--setup");
    add_bench_options(*command, options_of, options);
    if (options_of.contains("--dtype")) {
      command->add_flag(
          "--model", options->models_costs,
          "Fit what `ronde grid` and `ronde sim` read, and print the model's times, too");
    }
    command->callback([options, access, benchmark = std::move(benchmark), &exit_code] {
      exit_code = run_session("ronde bench", *options, access, benchmark);
    });
  };
  for (const CollectiveBenchmark& each : collective_benchmarks()) {
    std::set<std::string> options = {"--backend", "--raw", "--prepared", "--baseline"};
    if (each.output != Extent::Nothing) {
      options.insert({"--min", "--max", "--rotate", "--dtype", "--device"});
    }
    if (each.kind == Collective::Allreduce) options.insert("--wire-dtype");
    add(each.name, each.help, options,
        [&each](Session& session) { run_collective(each, session); });
  }
  add("exchange", "All gradients of a model, against plain MPI and memcpy",
      {"--backend", "--model", "--prepared", "--no-baseline"}, run_exchange);
  add("setups", "Allreduces on GPUs, by the set-ups of the EDSR study in turn",
      {"--min", "--max", "--rotate", "--backend", "--model", "--setup"},
      [access](Session& session) { run_setups(session, access); });
}

}  // namespace ronde::tool
