// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "common/data/table.h"

namespace kmeans {

/// Everything the command line says.
struct Options {
  std::filesystem::path data;
  example::TableFormat format;
  std::int64_t clusters = 10;
  std::int64_t iterations = 300;
  std::uint64_t seed = 1;
  std::filesystem::path output = "kmeans-output";
  std::filesystem::path json;
};

/// Parses and checks. Without --data, the digits with their labels. Throws CLI::ParseError (help
/// included), and InputError if there is neither --data nor the file of the digits.
Options parse_options(int argc, const char* const* argv);

}  // namespace kmeans
