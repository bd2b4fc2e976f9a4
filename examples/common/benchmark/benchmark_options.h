// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

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
  bool cuda_graph = false;
  bool no_distributed = false;
  bool efficiency = false;
  bool in_step = false;
  std::filesystem::path checkpoint = {};  ///< folder; empty: none are saved
  bool resume = false;
  std::filesystem::path json = {};
};

/// Adds all but --json as the group kBenchmarkGroup; what `options` holds are the defaults.
void add_benchmark_options(CLI::App& app, BenchmarkOptions& options);

/// Throws CLI::ParseError for what single options cannot tell: combinations that make no sense.
void check_benchmark_options(const BenchmarkOptions& options);

}  // namespace example
