// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench.h"

#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "tools/bench/collectives.h"
#include "tools/bench/exchange.h"
#include "tools/bench/launched_rank.h"
#include "tools/bench/memcpy.h"
#include "tools/bench/options.h"
#include "tools/bench/session.h"
#include "tools/bench/setups.h"

namespace ronde::tool {
namespace {

constexpr int kUsageExit = 2;

using Benchmark = std::function<void(Session&)>;

/// Where all ranks fail alike they leave together, and one of them speaks; after any other error
/// this rank just ends, and the launcher ends the others.
int run(const BenchOptions& options, const GpuAccess& access, const Benchmark& benchmark) {
  Session session(options, access);
  try {
    session.open_json();
    benchmark(session);
  } catch (const UsageError&) {
    session.close();
    throw;
  } catch (const CommonError& error) {
    session.close();
    if (launched_rank() == 0) std::cerr << "ronde bench: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  session.close();
  return EXIT_SUCCESS;
}

int run_checked(const BenchWords& words, const OptionSet& set, const GpuAccess& access,
                const Benchmark& benchmark) {
  try {
    BenchOptions options = parse_bench_options(words);
    options.baseline = options.baseline || (set.compares && !words.no_baseline);
    options.raw = options.raw || set.setups;
    return run(options, access, benchmark);
  } catch (const UsageError& error) {
    if (launched_rank() == 0) std::cerr << "ronde bench: " << error.what() << '\n';
    return kUsageExit;
  } catch (const std::exception& error) {
    std::cerr << "ronde bench: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code, const GpuAccess& access) {
  auto* const bench = app.add_subcommand(
      "bench", "Measure the collectives of all ranks: start it with mpiexec or another launcher");
  bench->require_subcommand(1);
  const auto add = [&](std::string_view name, std::string_view help, const OptionSet& set,
                       Benchmark benchmark) {
    auto* const command = bench->add_subcommand(std::string(name), std::string(help));
    const auto words = std::make_shared<BenchWords>();
    add_bench_options(*command, set, words);
    command->callback([words, set, access, benchmark = std::move(benchmark), &exit_code] {
      exit_code = run_checked(*words, set, access, benchmark);
    });
  };
  for (const CollectiveBenchmark& each : collective_benchmarks()) {
    const bool has_data = each.output != Extent::Nothing;
    add(each.name, each.help,
        {.sizes = has_data,
         .dtype = has_data,
         .wire = each.kind == Collective::Allreduce,
         .engine = true,
         .subject = true,
         .device = has_data,
         .default_max = each.default_max},
        [&each](Session& session) { run_collective(each, session); });
  }
  add("exchange", "All gradients of a model, against plain MPI and memcpy",
      {.engine = true, .models = true, .compares = true}, run_exchange);
  add("setups", "Allreduces on GPUs, by the set-ups of the EDSR study in turn",
      {.sizes = true, .engine = true, .models = true, .setups = true},
      [access](Session& session) { run_setups(session, access); });
  add("memcpy", "Copying memory, the floor under the others", {.sizes = true}, run_memcpy);
}

}  // namespace ronde::tool
