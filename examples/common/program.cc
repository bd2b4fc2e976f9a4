// SPDX-License-Identifier: Apache-2.0
#include "common/program.h"

#include <ronde/ronde.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string_view>

namespace example {
namespace {

/// Without shutdown: leaving so tells the other ranks, and they stop with a GroupError.
int fail(const std::string& name, int rank, const std::exception& error) {
  std::fprintf(stderr, "%s: rank %d: %s\n", name.c_str(), rank, error.what());
  return 1;
}

/// Wrong options: the same on every rank, so rank 0 alone says it.
int explain(const std::string& name, int rank, const CLI::ParseError& error) {
  const bool help = error.get_exit_code() == 0;
  if (!help && rank == 0) std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
  try {
    ronde::shutdown();
  } catch (const std::exception& shutdown_error) {
    // Another rank's options were right, or it died: rank 0 may not have said what is wrong here.
    if (!help && rank != 0) fail(name, rank, error);
    return fail(name, rank, shutdown_error);
  }
  return help ? 0 : 2;
}

bool asks_for_help(int argc, const char* const* argv) {
  return std::any_of(argv, argv + argc,
                     [](const std::string_view word) { return word == "--help" || word == "-h"; });
}

}  // namespace

int run_program(const std::string& name, int argc, const char* const* argv,
                const Program& program) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int rank = 0;
  try {
    if (!asks_for_help(argc, argv)) {
      ronde::init();
      rank = ronde::rank();
    }
    const int status = program(argc, argv);
    ronde::shutdown();
    return status;
  } catch (const CLI::ParseError& error) {
    return explain(name, rank, error);
  } catch (const std::exception& error) {
    return fail(name, rank, error);
  }
}

int ranks_to_parse_for() {
  return ronde::is_initialized() ? ronde::size() : 1;
}

void parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    app.exit(help);
    throw;
  }
}

}  // namespace example
