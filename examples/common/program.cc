// SPDX-License-Identifier: Apache-2.0
#include "common/program.h"

#include <ronde/ronde.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string_view>

namespace example {
namespace {

/// Rank 0 alone prints a wrong option, which is the same on every rank.
int explain(const std::string& name, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return 0;  // --help
  const bool is_first = !ronde::is_initialized() || ronde::rank() == 0;
  if (is_first) std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
  try {
    ronde::shutdown();
  } catch (const ronde::GroupError&) {
    // Another rank's options were right, or it died: rank 0 may not have printed this error.
    if (!is_first) throw std::runtime_error(error.what());
    throw;
  }
  return 2;
}

bool asks_for_help(int argc, const char* const* argv) {
  return std::any_of(argv, argv + argc,
                     [](const std::string_view word) { return word == "--help" || word == "-h"; });
}

}  // namespace

int run_program(const std::string& name, int argc, const char* const* argv,
                const Program& program) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto run = [&] {
    try {
      return program(argc, argv);
    } catch (const CLI::ParseError& error) {
      return explain(name, error);
    }
  };
  return asks_for_help(argc, argv) ? run() : ronde::main(run);
}

void parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  for (CLI::Option* const option : app.get_options()) {
    if (option->get_multi_option_policy() != CLI::MultiOptionPolicy::Throw) continue;
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    app.exit(help);
    throw;
  }
}

void require_divisible(const std::string& option, std::int64_t number, std::int64_t parts,
                       const std::string& reason) {
  if (number % parts == 0) return;
  throw CLI::ValidationError(option, std::to_string(number) + " is not divisible by " +
                                         std::to_string(parts) + ": " + reason);
}

void require_groups(const std::string& option, std::int64_t ranks_of_group) {
  if (ronde::size() % ranks_of_group == 0) return;
  throw CLI::ValidationError(option, "the " + std::to_string(ronde::size()) +
                                         " ranks cannot be divided into groups of " +
                                         std::to_string(ranks_of_group));
}

}  // namespace example
