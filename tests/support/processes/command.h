// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace ronde::test {

struct CommandResult {
  int exit_code = -1;  ///< -1 if it was ended by a signal
  std::string out;
  std::string err;
};

/// Runs a program to its end. `words` are its path and its arguments. Its environment is this
/// process's without any RONDE_* and HOROVOD_* variable, and with those given. It has no input.
CommandResult run_program(std::vector<std::string> words,
                          const std::map<std::string, std::string>& environment = {});

}  // namespace ronde::test
