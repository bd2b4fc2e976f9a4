// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <torch/types.h>

#include "common/benchmark/benchmark_options.h"
#include "common/benchmark/trainer.h"

namespace example {

/// What a synthetic benchmark trains.
struct Workload {
  std::string model;  ///< its name in what is printed
  double learning_rate = 0.01;
  /// Makes module and batch on this rank's device, all anew at each call.
  std::function<Task(torch::Device device)> make_task;
};

/// Trains and prints images per second: rank 0's, in the words of Horovod's synthetic benchmark.
/// With options.efficiency: trains connected and unconnected ranks in turns, and prints how many
/// milliseconds a step of each takes and the ratio. Collective. Throws InputError if options.json
/// cannot be written, and std::runtime_error if the ranks' parameters differ after connected steps.
void run_benchmark(const Workload& workload, const BenchmarkOptions& options);

}  // namespace example
