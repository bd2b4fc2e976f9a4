// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace example {

/// Parses the command line, does the work on this rank, and gives the exit status.
using Program = std::function<int(int argc, const char* const* argv)>;

/// The main() of an example: starts Ronde, runs `program` and shuts Ronde down. Returns what the
/// program returned; 0 after --help; 2 after a wrong option (CLI::ParseError), which rank 0 alone
/// explains, as it is the same on every rank; 1 after any other exception, said by each rank that
/// had one.
int run_program(const std::string& name, int argc, const char* const* argv, const Program& program);

/// app.parse, and the text of --help printed by rank 0. Throws CLI::ParseError, for --help too.
void parse_command_line(CLI::App& app, int argc, const char* const* argv);

}  // namespace example
