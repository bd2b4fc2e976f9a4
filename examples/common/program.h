// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace CLI {
class App;
}

namespace example {

/// Something the user gave is wrong: an option, an image, a checkpoint, a folder. The text names
/// it, says why, and what to do where that is not obvious.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Parses the command line, does the work on this rank, and returns the exit status.
using Program = std::function<int(int argc, const char* const* argv)>;

/// The main() of an example: ronde::main, except that a wrong option (CLI::ParseError), the same on
/// every rank, is explained by rank 0 alone, and all ranks return 2. With --help among the options
/// Ronde does not start, and every rank prints the text and returns 0.
int run_program(const std::string& name, int argc, const char* const* argv, const Program& program);

/// Calls app.parse, and prints the text of --help. Of an option given twice the last one counts, so
/// that a script's can be overridden by what follows. Throws CLI::ParseError, for --help too.
void parse_command_line(CLI::App& app, int argc, const char* const* argv);

/// Throws CLI::ValidationError, with the option and the reason, unless `number` is a multiple of
/// `parts`.
void require_divisible(const std::string& option, std::int64_t number, std::int64_t parts,
                       const std::string& reason);

/// Throws CLI::ValidationError, with the option, unless the ranks can be divided into groups of so
/// many.
void require_groups(const std::string& option, std::int64_t ranks_of_group);

}  // namespace example
