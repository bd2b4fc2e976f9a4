// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/options.h"

#include <unistd.h>

#include <algorithm>

#include "ronde/config.h"
#include "ronde/error.h"
#include "tools/bench/gradient_lists.h"

namespace ronde::tool {
namespace {

std::size_t bytes_of(const char* option, const std::string& text) {
  try {
    return static_cast<std::size_t>(parse_bytes(text));
  } catch (const UsageError& error) {
    throw UsageError(std::string(option) + ": " + error.what());
  }
}

DataType dtype_of(const std::string& option, const std::string& text) {
  std::string names;
  for (const DataType dtype : kAllDataTypes) {
    if (to_string(dtype) == text) return dtype;
    names += (names.empty() ? "" : ", ") + std::string(to_string(dtype));
  }
  throw UsageError(option + ": there is no element type \"" + text + "\"; use one of: " + names);
}

DataType wire_dtype_of(const std::string& text, DataType dtype) {
  const DataType wire = dtype_of("--wire-dtype", text);
  const bool is_full = dtype == DataType::F32 || dtype == DataType::F64;
  if (is_full && is_half(wire)) return wire;
  throw UsageError("--wire-dtype: " + std::string(to_string(dtype)) + " cannot travel as " + text +
                   ", but f32 and f64 can as f16 and bf16");
}

DeviceKind device_of_text(const std::string& text) {
  for (const DeviceKind device : {DeviceKind::Cpu, DeviceKind::Cuda}) {
    if (text == to_string(device)) return device;
  }
  throw UsageError("--device: there is no device \"" + text + "\"; use one of: cpu, cuda");
}

}  // namespace

void add_bench_options(CLI::App& command, const OptionSet& set,
                       const std::shared_ptr<BenchWords>& words) {
  if (set.sizes) {
    words->min = "4";
    words->max = set.default_max;
    command.add_option("--min", words->min, "Smallest size: 4, 64KiB")->capture_default_str();
    command.add_option("--max", words->max, "Largest size; each is twice the one before")
        ->capture_default_str();
    auto* const rotate = command.add_option(
        "--rotate", words->rotate,
        "Walk through this much memory instead of using the same in every call [without a size: "
        "together twice the largest cache]");
    words->rotate_option = rotate->expected(0, 1);
  }
  if (set.dtype) {
    command.add_option("--dtype", words->dtype, "Element type: f32, bf16, i64, ...")
        ->capture_default_str();
  }
  if (set.wire) {
    command.add_option("--wire-dtype", words->wire_dtype,
                       "f16 or bf16: what f32 and f64 travel as between the ranks");
  }
  if (set.engine) {
    command.add_option("--backend", words->backend,
                       "As RONDE_CPU_BACKEND, or RONDE_GPU_BACKEND for --device cuda");
  }
  if (set.device) {
    command.add_option("--device", words->device, "cpu or cuda: where the buffers are")
        ->capture_default_str();
  }
  if (set.subject) {
    command.add_flag("--raw", words->raw, "Call the backend itself, without the coordinator");
    command.add_flag("--baseline", words->baseline,
                     "Take turns with plain MPI on the same buffers, and print the ratio");
  }
  if (set.models) {
    command.add_option("--model", words->models, "resnet18, resnet50, edsr, edsr-full; repeatable")
        ->delimiter(',')
        ->capture_default_str();
  }
  if (set.setups) {
    command
        .add_option("--setup", words->setups,
                    "mpi, mpi-reg, mpi-opt, mpi-opt-nocache, nccl; repeatable [all]")
        ->delimiter(',');
  }
  if (set.compares) {
    command.add_flag("--no-baseline", words->no_baseline,
                     "Ronde alone, as for a sweep over its settings");
  }
  command.add_option("--iters", words->iterations, "Calls that are timed [fewer for more bytes]")
      ->check(CLI::PositiveNumber);
  command.add_option("--warmup", words->warmup, "Calls before them that are not")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--json", words->json, "Also write the rows to this file");
}

std::size_t rotate_bytes_for(const BenchOptions& options, int ranks_of_host) {
  constexpr long kLeast = 64L << 20;
  constexpr long kMost = 1L << 30;
  if (!options.rotates) return 0;
  // A machine that does not tell its cache says 0.
  const long share = 2 * sysconf(_SC_LEVEL3_CACHE_SIZE) / ranks_of_host;
  return options.rotate_bytes.value_or(static_cast<std::size_t>(std::clamp(share, kLeast, kMost)));
}

int iterations_for(const BenchOptions& options, std::size_t bytes) {
  constexpr std::size_t kTotal = std::size_t{256} << 20;
  return options.iterations.value_or(static_cast<int>(
      std::clamp<std::size_t>(kTotal / std::max<std::size_t>(bytes, 1), 20, 1000)));
}

BenchOptions parse_bench_options(const BenchWords& words) {
  BenchOptions options;
  if (!words.min.empty()) options.min_bytes = bytes_of("--min", words.min);
  if (!words.max.empty()) options.max_bytes = bytes_of("--max", words.max);
  if (options.min_bytes == 0) throw UsageError("--min: at least one byte has to be moved");
  if (options.min_bytes > options.max_bytes) {
    throw UsageError("--min (" + format_bytes(options.min_bytes) + ") is above --max (" +
                     format_bytes(options.max_bytes) + ")");
  }
  options.dtype = dtype_of("--dtype", words.dtype);
  if (!words.wire_dtype.empty())
    options.wire_dtype = wire_dtype_of(words.wire_dtype, options.dtype);
  if (!words.backend.empty()) options.backend = words.backend;
  if (words.iterations > 0) options.iterations = words.iterations;
  options.warmup = words.warmup;
  options.device = device_of_text(words.device);
  if (options.device != DeviceKind::Cpu && (words.raw || words.baseline)) {
    throw UsageError(
        "--device cuda: --raw and --baseline are of buffers on the CPU; `ronde bench "
        "setups` measures backends of GPUs without the coordinator");
  }
  options.raw = words.raw;
  options.baseline = words.baseline;
  options.rotates = words.rotate_option != nullptr && words.rotate_option->count() > 0;
  if (!words.rotate.empty()) options.rotate_bytes = bytes_of("--rotate", words.rotate);
  for (const std::string& model : words.models) static_cast<void>(gradient_list(model));
  options.models = words.models;
  options.setups = words.setups;
  options.json = words.json;
  return options;
}

}  // namespace ronde::tool
