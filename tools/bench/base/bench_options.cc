// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/base/bench_options.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "ronde/config.h"
#include "ronde/error.h"
#include "tools/bench/base/gradient_lists.h"

namespace ronde::tool {
namespace {

/// An option whose text goes to `take`, whatever that throws with the option's name before it.
template <typename Take>
CLI::Option* add_text(CLI::App& command, const std::string& name, const std::string& help,
                      Take take) {
  return command.add_option_function<std::string>(
      name,
      [name, take](const std::string& text) {
        try {
          take(text);
        } catch (const UsageError& error) {
          throw CLI::ValidationError(name, error.what());
        }
      },
      help);
}

/// The one of `all` that is called `text`.
template <typename Choices>
auto choice_of(const char* what, const std::string& text, const Choices& all) {
  std::string names;
  for (const auto choice : all) {
    if (to_string(choice) == text) return choice;
    names += (names.empty() ? "" : ", ") + std::string(to_string(choice));
  }
  throw UsageError("there is no " + std::string(what) + " \"" + text + "\"; use one of: " + names);
}

void add_all(CLI::App& command, BenchOptions& options) {
  BenchOptions* const o = &options;
  add_size(command, "--min", "Smallest size: 4, 64KiB", options.min_bytes);
  add_size(command, "--max", "Largest size; each is twice the one before", options.max_bytes);
  const auto rotate = [o](const std::string& text) {
    o->rotates = true;
    if (!text.empty()) o->rotate_bytes = parse_bytes(text);
  };
  add_text(command, "--rotate",
           "Walk through this much memory instead of using the same in every call [without a size: "
           "together twice the largest cache]",
           rotate)
      ->expected(0, 1);
  add_text(command, "--dtype", "Element type: f32, bf16, i64, ...", [o](const std::string& text) {
    o->dtype = choice_of("element type", text, kAllDataTypes);
  })->default_str("f32");
  add_text(command, "--wire-dtype", "f16 or bf16: the wire type of f32 and f64",
           [o](const std::string& text) {
             o->wire_dtype = choice_of("element type", text, kAllDataTypes);
           });
  add_text(command, "--device", "cpu or cuda: where the buffers are", [o](const std::string& text) {
    o->device = choice_of("device", text, std::array{DeviceKind::Cpu, DeviceKind::Cuda});
  })->default_str("cpu");
  command.add_option("--backend", o->backend,
                     "As RONDE_CPU_BACKEND, or RONDE_GPU_BACKEND for --device cuda");
  command.add_flag("--raw", o->raw, "Call the backend itself, without the coordinator");
  command.add_flag("--prepared", o->prepared, "Prepare the operation once, and time its starts");
  command.add_flag("--baseline", o->baseline,
                   "Take turns with plain MPI on the same buffers, and print the ratio");
  command.add_flag("--no-baseline{false}", o->baseline, "Ronde alone, as to compare its settings");
  command.add_option("--model", o->models, "resnet18, resnet50, edsr, edsr-full; repeatable")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--setup", o->setups,
                  "mpi, mpi-reg, mpi-opt, mpi-opt-nocache, nccl; repeatable [all]")
      ->delimiter(',');
  command.add_option("--iters", o->iterations, "Calls that are timed [fewer for more bytes]")
      ->check(CLI::PositiveNumber);
  command.add_option("--warmup", o->warmup, "Calls before them that are not")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--json", o->json, "Also write the rows to this file");
}

}  // namespace

void add_size(CLI::App& command, const std::string& name, const std::string& help,
              std::size_t& bytes) {
  add_text(command, name, help, [&bytes](const std::string& text) {
    bytes = parse_bytes(text);
    if (bytes == 0) throw UsageError("at least one byte has to be moved");
  })->default_str(format_bytes(bytes));
}

void add_bench_options(CLI::App& command, const std::set<std::string>& names,
                       const std::shared_ptr<BenchOptions>& options) {
  static const std::set<std::string> common = {"--help", "--iters", "--warmup", "--json"};
  add_all(command, *options);
  for (CLI::Option* const option : command.get_options({})) {
    const std::string name = "--" + option->get_lnames().front();
    if (!names.contains(name) && !common.contains(name)) command.remove_option(option);
  }
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

void check_bench_options(const BenchOptions& options) {
  if (options.min_bytes > options.max_bytes) {
    throw UsageError("--min (" + format_bytes(options.min_bytes) + ") is above --max (" +
                     format_bytes(options.max_bytes) + ")");
  }
  if (options.wire_dtype) {
    const bool is_full = options.dtype == DataType::F32 || options.dtype == DataType::F64;
    if (!is_full || !is_half(*options.wire_dtype)) {
      throw UsageError("--wire-dtype: " + std::string(to_string(options.dtype)) +
                       " cannot be sent as " + std::string(to_string(*options.wire_dtype)) +
                       ", but f32 and f64 can as f16 and bf16");
    }
  }
  if (options.raw && options.prepared) {
    throw UsageError("--raw and --prepared: a backend itself has no persistent operations");
  }
  if (options.device != DeviceKind::Cpu && (options.raw || options.baseline)) {
    throw UsageError(
        "--device cuda: --raw and --baseline are of buffers on the CPU; `ronde bench "
        "setups` measures backends of GPUs without the coordinator");
  }
  for (const std::string& model : options.models) static_cast<void>(gradient_list(model));
}

}  // namespace ronde::tool
