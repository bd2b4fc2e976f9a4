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

/// The main() of an example: ronde::main, but for a wrong option (CLI::ParseError), which is the
/// same on every rank. So rank 0 alone explains it, and all return 2. With --help among the options
/// Ronde does not start, and every rank prints the text and returns 0.
int run_program(const std::string& name, int argc, const char* const* argv, const Program& program);

/// How many ranks there are; 1 for the text of --help, which is printed before Ronde starts.
int ranks_to_parse_for();

/// app.parse, and the text of --help printed. Throws CLI::ParseError, for --help too.
void parse_command_line(CLI::App& app, int argc, const char* const* argv);

}  // namespace example
