// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/command.h"

namespace ronde::test {

/// Runs the program of these tests (ronde_add_program_tests) on so many ranks under the MPI
/// launcher, one thread each, and ends it after a minute.
CommandResult launch(int ranks, const std::vector<std::string>& options,
                     std::map<std::string, std::string> environment = {});

/// Whether it ended by itself, and not well. The launcher may end the other ranks of one that
/// fails, so that the status is not always the one that this rank left with.
bool failed_in_time(const CommandResult& result);

/// What `launch` has printed; fails the test if the exit status is not 0.
std::string launch_well(int ranks, const std::vector<std::string>& options);

/// The numbers of a file, separated by commas or line ends.
std::vector<double> read_numbers(const std::filesystem::path& file);

/// Fails the test where the two have other lengths, or a number differs by more than 1e-12 of its
/// value: losses in 64-bit floats of the first steps, with ranks and in one process.
void check_near(const std::vector<double>& numbers, const std::vector<double>& expected);

}  // namespace ronde::test
