// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "ronde/error.h"

namespace ronde::tool {

/// The exit code after an error of usage.
inline constexpr int kUsageExit = 2;

/// Add a sub-command of `ronde`; `exit_code` is what the process shall end with: 2 after an error
/// of usage or of input, 1 after any other one.
/// @{
void add_grid(CLI::App& app, int& exit_code);
void add_info(CLI::App& app, int& exit_code);
void add_prof(CLI::App& app, int& exit_code);
/// `program`: its words, as given after "--". Its exit code is that of the rank that failed first,
/// or 128 and the number of a signal.
void add_run(CLI::App& app, std::vector<std::string> program, int& exit_code);
void add_sim(CLI::App& app, int& exit_code);
/// Its exit code is 1 if no job runs.
void add_top(CLI::App& app, int& exit_code);
void add_tune(CLI::App& app, int& exit_code);
/// @}

/// Writes to stderr by one call, as the ranks of a job and its launcher share it.
inline void complain(const std::string& name, const std::string& text) {
  std::cerr << name + ": " + text + '\n';
}

/// Returns the exit code of `command`, or of what it throws, which it prints with the name.
/// `reports_usage`: false on the other ranks where all of them throw the same UsageError.
template <typename Command>
int exit_code_of(const std::string& name, const Command& command, bool reports_usage = true) {
  try {
    return command();
  } catch (const UsageError& error) {
    if (reports_usage) complain(name, error.what());
    return kUsageExit;
  } catch (const std::exception& error) {
    complain(name, error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace ronde::tool
