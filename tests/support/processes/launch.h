// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "tests/support/processes/command.h"

namespace ronde::test {

using Words = std::vector<std::string>;

/// Runs the program of these tests (ronde_add_program_tests) on so many ranks under the MPI
/// launcher, one thread each, and ends it after two minutes.
CommandResult launch(int ranks, const Words& options,
                     std::map<std::string, std::string> environment = {});

/// What `launch` has printed; fails the test if the exit status is not 0.
std::string launch_well(int ranks, const Words& options);

/// What `launch` has printed on both streams; fails the test unless the program has ended by
/// itself, and not well, and without an exception that nobody caught.
std::string launch_badly(int ranks, const Words& options,
                         const std::map<std::string, std::string>& environment = {});

/// The same of two ranks with options of their own. A rank that fails does not end the other.
std::string launch_pair_badly(const Words& first, const Words& second,
                              std::map<std::string, std::string> environment = {});

/// Fails the test unless all ranks end with status 2 and one of them says `words`, which begin with
/// the program's name, and nothing else.
void check_refused_once(int ranks, const Words& options, const std::string& words);

/// The numbers of a file, separated by commas or line ends.
std::vector<double> read_numbers(const std::filesystem::path& file);

/// Fails the test where the two have other lengths, or a number differs by more than 1e-12 of its
/// value: losses in 64-bit floats of the first steps, with ranks and in one process.
void check_near(const std::vector<double>& numbers, const std::vector<double>& expected);

}  // namespace ronde::test
