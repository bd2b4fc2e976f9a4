// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "common/benchmark.h"

namespace resnet {

struct Options {
  std::string model = "resnet50";
  std::int64_t image_size = 224;  ///< side, pixels
  example::BenchmarkOptions benchmark;
};

/// Parses and checks. Throws CLI::ParseError (help included).
Options parse_options(int argc, const char* const* argv);

/// Returns the model with random images and classes, drawn once; different ones on every rank.
example::Workload make_workload(const Options& options);

}  // namespace resnet
