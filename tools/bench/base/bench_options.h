// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ronde/collective.h"
#include "ronde/dtype.h"

namespace ronde::tool {

/// Options of a run of `ronde bench`.
struct BenchOptions {
  std::size_t min_bytes = 4;
  std::size_t max_bytes = std::size_t{64} << 20;
  DataType dtype = DataType::F32;
  std::optional<DataType> wire_dtype;  ///< the wire type of an allreduce
  std::optional<std::string> backend;  ///< nothing: what the variable of the device says
  DeviceKind device = DeviceKind::Cpu;
  std::optional<int> iterations;  ///< nothing: fewer for more bytes
  int warmup = 10;
  bool raw = false;
  bool prepared = false;  ///< collectives are persistent operations
  bool baseline = false;
  bool models_costs = false;
  bool rotates = false;                     ///< false: the same memory in every call
  std::optional<std::size_t> rotate_bytes;  ///< nothing: more than the caches hold
  std::vector<std::string> models = {"resnet50"};
  std::vector<std::string> setups;  ///< empty: all
  std::string json;                 ///< empty: no file
};

/// Memory that a rank walks through, so that the caches never hold what it comes to next: what was
/// asked for, or its share of twice the largest cache. 0 if the run does not rotate.
std::size_t rotate_bytes_for(const BenchOptions& options, int ranks_of_host);

/// Calls to time for a size, unless the user says so.
int iterations_for(const BenchOptions& options, std::size_t bytes);

/// Adds the option of a size, whose default is that of `bytes`, to which parsing writes it.
void add_size(CLI::App& command, const std::string& name, const std::string& help,
              std::size_t& bytes);

/// Adds the options to a sub-command: `names`, and those that all benchmarks have. Parsing writes
/// them to `options`.
void add_bench_options(CLI::App& command, const std::set<std::string>& names,
                       const std::shared_ptr<BenchOptions>& options);

/// Throws UsageError for options that exclude each other.
void check_bench_options(const BenchOptions& options);

}  // namespace ronde::tool
