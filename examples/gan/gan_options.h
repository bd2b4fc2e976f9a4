// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace gan {

/// Everything the command line says.
struct Options {
  std::int64_t steps = 1500;
  std::int64_t batch = 240;
  std::uint64_t seed = 1;
  std::filesystem::path losses;
};

/// Parses and checks. Throws CLI::ParseError (help included), also if the batch cannot be divided
/// among the ranks.
Options parse_options(int argc, const char* const* argv, int ranks);

}  // namespace gan
