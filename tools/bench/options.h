// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/collective.h"
#include "ronde/dtype.h"

namespace ronde::tool {

/// What a run of `ronde bench` was asked for.
struct BenchOptions {
  std::size_t min_bytes = 4;
  std::size_t max_bytes = std::size_t{64} << 20;
  DataType dtype = DataType::F32;
  std::optional<DataType> wire_dtype;  ///< what an allreduce travels as
  std::optional<std::string> backend;  ///< nothing: what the variable of the device says
  DeviceKind device = DeviceKind::Cpu;
  std::optional<int> iterations;  ///< nothing: fewer for more bytes
  int warmup = 10;
  bool raw = false;
  bool baseline = false;
  bool rotates = false;                     ///< false: the same memory in every call
  std::optional<std::size_t> rotate_bytes;  ///< nothing: more than the caches hold
  std::vector<std::string> models;
  std::vector<std::string> setups;  ///< empty: all
  std::string json;                 ///< empty: no file
};

/// Memory that a rank walks through, so that the caches never hold what it comes to next: what was
/// asked for, or its share of twice the largest cache. 0 if the run does not rotate.
std::size_t rotate_bytes_for(const BenchOptions& options, int ranks_of_host);

/// Calls to time for a size, unless the user says so.
int iterations_for(const BenchOptions& options, std::size_t bytes);

/// The words of the command line, before they are checked.
struct BenchWords {
  std::string min, max, dtype = "f32", wire_dtype, backend, rotate, device = "cpu";
  int iterations = 0;
  int warmup = 10;
  bool raw = false;
  bool baseline = false;
  bool no_baseline = false;
  std::vector<std::string> models = {"resnet50"};
  std::vector<std::string> setups;
  std::string json;
  const CLI::Option* rotate_option = nullptr;  ///< tells --rotate without a size from none
};

/// The options that a benchmark has beside those that all have.
struct OptionSet {
  bool sizes = false;     ///< --min, --max, --rotate
  bool dtype = false;     ///< --dtype
  bool wire = false;      ///< --wire-dtype
  bool engine = false;    ///< --backend
  bool subject = false;   ///< --raw, --baseline
  bool device = false;    ///< --device
  bool models = false;    ///< --model
  bool compares = false;  ///< --no-baseline
  bool setups = false;    ///< --setup
  std::string_view default_max = "64MiB";
};

/// Adds the options to a sub-command; they are written to `words` when it is parsed.
void add_bench_options(CLI::App& command, const OptionSet& set,
                       const std::shared_ptr<BenchWords>& words);

/// Throws UsageError for nonsense.
BenchOptions parse_bench_options(const BenchWords& words);

}  // namespace ronde::tool
