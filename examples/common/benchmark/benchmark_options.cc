// SPDX-License-Identifier: Apache-2.0
#include "common/benchmark/benchmark_options.h"

#include <CLI/CLI.hpp>

namespace example {

void add_benchmark_options(CLI::App& app, BenchmarkOptions& options) {
  const auto count = [&](const char* name, std::int64_t& value, const char* text) {
    return app.add_option(name, value, text)->capture_default_str()->group(kBenchmarkGroup);
  };
  const auto flag = [&](const char* name, bool& value, const char* text) {
    app.add_flag(name, value, text)->group(kBenchmarkGroup);
  };
  count("--batch-size", options.batch_size, "Images per rank and step")->check(CLI::PositiveNumber);
  count("--num-warmup-batches", options.num_warmup_batches,
        "Steps before measuring; with --efficiency before every round of each kind")
      ->check(CLI::NonNegativeNumber);
  count("--num-batches-per-iter", options.num_batches_per_iter, "Steps per iteration or round")
      ->check(CLI::PositiveNumber);
  count("--num-iters", options.num_iters, "Iterations, or with --efficiency rounds")
      ->check(CLI::PositiveNumber);
  app.add_option("--device", options.device,
                 "cpu, or cuda: a GPU of its own for each rank of a host")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str()
      ->group(kBenchmarkGroup);
  flag("--amp", options.amp, "Mixed precision: compute in bf16 where that is safe (autocast)");
  flag("--fp16-allreduce", options.fp16_allreduce, "Send gradients as fp16");
  flag("--cuda-graph", options.cuda_graph,
       "With --device cuda: capture forward and backward once, after the warm-up, and replay them "
       "in each step; gradients are exchanged after that");
  flag("--no-distributed", options.no_distributed,
       "Train ranks side by side that exchange nothing during steps");
  flag("--efficiency", options.efficiency,
       "Measure both kinds in turns, and print the scaling efficiency");
  flag("--in-step", options.in_step,
       "With --efficiency: also measure ranks that wait for each other after every step and "
       "exchange nothing, which tells waiting from exchanging");
  app.add_option("--checkpoint", options.checkpoint,
                 "Folder for checkpoints: of a benchmark one for each iteration [none; training: "
                 "in --output]")
      ->group(kBenchmarkGroup);
  flag("--resume", options.resume, "Go on from the newest checkpoint, if there is one");
}

void check_benchmark_options(const BenchmarkOptions& options) {
  if (options.fp16_allreduce && options.no_distributed) {
    throw CLI::ExcludesError("--fp16-allreduce", "--no-distributed");
  }
  if (options.efficiency && options.no_distributed) {
    throw CLI::ExcludesError("--efficiency", "--no-distributed");
  }
  if (!options.checkpoint.empty() && (options.efficiency || options.no_distributed)) {
    throw CLI::ExcludesError("--checkpoint",
                             options.efficiency ? "--efficiency" : "--no-distributed");
  }
  if (options.resume && options.checkpoint.empty()) {
    throw CLI::RequiresError("--resume", "--checkpoint");
  }
  if (options.in_step && !options.efficiency) {
    throw CLI::RequiresError("--in-step", "--efficiency");
  }
  if (options.cuda_graph && options.device != "cuda") {
    throw CLI::RequiresError("--cuda-graph", "--device cuda");
  }
  if (options.cuda_graph && options.num_warmup_batches == 0) {
    throw CLI::ValidationError("--num-warmup-batches",
                               "--cuda-graph needs steps before it, at least 1");
  }
  if (!options.json.empty() && !options.efficiency) {
    throw CLI::RequiresError("--json", "--efficiency");
  }
}

}  // namespace example
