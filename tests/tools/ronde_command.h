// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/processes/beside.h"
#include "tests/support/processes/command.h"

namespace ronde::test {

/// Runs the `ronde` command.
inline CommandResult run_command(std::vector<std::string> arguments,
                                 const std::map<std::string, std::string>& environment = {}) {
  arguments.insert(arguments.begin(), RONDE_COMMAND);
  return run_program(std::move(arguments), environment);
}

/// Requires that it ended with this code.
inline CommandResult ended(int exit_code, CommandResult result) {
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == exit_code);
  return result;
}

}  // namespace ronde::test
