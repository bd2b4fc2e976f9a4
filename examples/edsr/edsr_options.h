// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/benchmark.h"
#include "model.h"

namespace edsr {

/// The command line. Sizes of the data are in pixels. A synthetic benchmark reads network, patch,
/// seed and benchmark alone; training reads device, amp, checkpoint and resume of benchmark.
struct Options {
  bool synthetic = false;
  example::BenchmarkOptions benchmark{.batch_size = 4};

  std::vector<std::filesystem::path> data;
  std::vector<std::filesystem::path> validation;  ///< given: evaluate on these, hold out none
  std::size_t held_out = 4;
  std::int64_t max_side = 0;
  std::int64_t min_side = 512;

  std::string preset = "tiny";
  EdsrOptions network;

  std::int64_t batch = 16;  ///< over all ranks together
  std::int64_t patch = 48;  ///< low-resolution side
  std::int64_t steps = 0;   ///< 0: no limit
  double minutes = 0;       ///< 0: no limit
  double learning_rate = 1e-4;
  std::optional<double> until_gain;  ///< dB above bicubic
  std::int64_t lr_halve_every = 0;   ///< steps
  std::uint64_t seed = 1;
  std::size_t workers = 1;

  std::filesystem::path output = "edsr-output";
  std::filesystem::path json;
  std::int64_t checkpoint_every = 0;  ///< steps; 0: only at the end
};

/// Parses and checks. Throws CLI::ParseError (help included) and InputError.
Options parse_options(int argc, const char* const* argv);

/// Returns the network with random patches, low-resolution ones and their targets, drawn once;
/// different ones on every rank.
example::Workload make_workload(const Options& options);

}  // namespace edsr
