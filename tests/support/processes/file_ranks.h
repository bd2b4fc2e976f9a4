// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ronde/key_value_start.h"
#include "tests/support/processes/command.h"

namespace ronde::test {

/// Runs a hidden case of this program as `size` processes, which no launcher knows of and which
/// meet through files (start_by_files): what becomes of one is left to the others.
std::vector<CommandResult> run_file_ranks(int size, const std::string& helper,
                                          std::map<std::string, std::string> variables);

/// In such a process: who it is, and how it meets the others.
KeyValueStart start_by_files();

/// In such a process: one of the variables. Throws std::runtime_error if it is not set.
std::string started_with(const char* variable);

}  // namespace ronde::test
