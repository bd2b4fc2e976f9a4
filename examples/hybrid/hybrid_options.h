// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace hybrid {

/// Everything the command line says.
struct Options {
  int split = 1;
  std::int64_t hidden = 240;
  std::int64_t batch = 48;
  std::int64_t epochs = 10;
  std::uint64_t seed = 1;
  std::filesystem::path losses;
};

/// Parses and checks; the ranks are divided into groups of `split`, by default of 2 where that is
/// possible. Throws CLI::ParseError (help included), also if a number cannot be divided.
Options parse_options(int argc, const char* const* argv, int ranks);

}  // namespace hybrid
