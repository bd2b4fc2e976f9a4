// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "common/trainer.h"

namespace CLI {
class App;
}

namespace example {

inline constexpr const char* kBenchmarkGroup = "Synthetic benchmark";

/// The command line of a synthetic benchmark.
struct BenchmarkOptions {
  std::int64_t batch_size = 32;  ///< images a rank and step
  std::int64_t num_warmup_batches = 10;
  std::int64_t num_batches_per_iter = 10;
  std::int64_t num_iters = 10;
  std::string device = "cpu";  ///< or "cuda"
  bool amp = false;
  bool fp16_allreduce = false;
  bool no_distributed = false;
  bool efficiency = false;
  std::filesystem::path checkpoint = {};  ///< folder; empty: none are saved
  bool resume = false;
  std::filesystem::path json = {};
};

/// Adds all but --json as the group kBenchmarkGroup; the values of `options` are the defaults.
void add_benchmark_options(CLI::App& app, BenchmarkOptions& options);

/// Throws CLI::ParseError for combinations that make no sense.
void check_benchmark_options(const BenchmarkOptions& options);

/// The model and batch that a synthetic benchmark trains.
struct Workload {
  std::string model;  ///< its name in what is printed
  double learning_rate = 0.01;
  /// Makes module and batch on this rank's device, all anew at each call.
  std::function<Task(torch::Device device)> make_task;
};

/// Milliseconds a step of connected and of unconnected ranks, measured one after the other.
struct Round {
  double step_ms = 0;
  double step_ms_unconnected = 0;

  double efficiency() const { return step_ms_unconnected / step_ms; }
};

/// The medians of the steps of several rounds; their ratio is the efficiency (1 is perfect).
/// `lowest` and `highest` are the efficiencies of single rounds.
struct Efficiency {
  Round median;
  double lowest = 0;
  double highest = 0;
};

/// Summarizes at least one round.
Efficiency summarize(const std::vector<Round>& rounds);

/// Trains and prints images per second on rank 0, in the words of Horovod's synthetic benchmark.
/// With options.efficiency: trains connected and unconnected ranks in turns, prints how many
/// milliseconds a step of each takes and the ratio, and writes options.json: model, ranks, step_ms,
/// step_ms_unconnected, efficiency, and on GPUs with a registration cache registration_hit_rate.
/// Collective. Throws InputError if options.json cannot be written, and ronde::UsageError if the
/// ranks' parameters differ after connected steps.
void run_benchmark(const Workload& workload, const BenchmarkOptions& options);

}  // namespace example
