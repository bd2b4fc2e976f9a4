// SPDX-License-Identifier: Apache-2.0
#include "tests/support/processes/launch.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

#include "tests/support/processes/beside.h"
#include "tests/support/processes/temporary_folder.h"

namespace ronde::test {
namespace {

using Catch::Contains;

Words launcher() {
  return {"/usr/bin/env", "timeout", "-k", "5", "120", TEST_LAUNCHER_PROGRAM};
}

void add_ranks(Words& words, int ranks, const Words& options) {
  words.insert(words.end(), {TEST_LAUNCHER_COUNT, std::to_string(ranks), TEST_PROGRAM});
  words.insert(words.end(), options.begin(), options.end());
}

std::string require_failure(const CommandResult& result) {
  constexpr int kTimedOut = 124;
  INFO(result.out << result.err);
  // The launcher may end the other ranks of one that fails, so that the status is not always the
  // one that this rank left with.
  REQUIRE(result.exit_code > 0);
  REQUIRE(result.exit_code != kTimedOut);
  CHECK_THAT(result.err, !Contains("terminate called"));
  return result.out + result.err;
}

}  // namespace

CommandResult launch(int ranks, const Words& options,
                     std::map<std::string, std::string> environment) {
  Words words = launcher();
  add_ranks(words, ranks, options);
  environment.emplace("OMP_NUM_THREADS", "1");
  return run_program(words, environment);
}

std::string launch_well(int ranks, const Words& options) {
  const CommandResult result = launch(ranks, options);
  INFO(ranks << " ranks:\n" << result.out << result.err);
  REQUIRE(result.exit_code == 0);
  return result.out;
}

std::string launch_badly(int ranks, const Words& options,
                         const std::map<std::string, std::string>& environment) {
  return require_failure(launch(ranks, options, environment));
}

std::string launch_pair_badly(const Words& first, const Words& second,
                              std::map<std::string, std::string> environment) {
  Words words = launcher();
  // Hydra would otherwise kill the other rank before it can say what it saw.
  words.emplace_back("-disable-auto-cleanup");
  add_ranks(words, 1, first);
  words.emplace_back(":");
  add_ranks(words, 1, second);
  environment.emplace("OMP_NUM_THREADS", "1");
  return require_failure(run_program(words, environment));
}

void check_refused_once(int ranks, const Words& options, const std::string& words) {
  const CommandResult result = launch(ranks, options);
  INFO(result.out << result.err);
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  const std::string program = words.substr(0, words.find(' ') + 1);
  const std::size_t first = result.err.find(program);
  CHECK(result.err.find(words) == first);
  CHECK(result.err.find(program, first + 1) == std::string::npos);
}

std::vector<double> read_numbers(const std::filesystem::path& file) {
  std::string text = read_text(file);
  std::replace(text.begin(), text.end(), ',', '\n');
  std::istringstream lines(text);
  std::vector<double> numbers;
  for (std::string line; std::getline(lines, line);) numbers.push_back(std::stod(line));
  return numbers;
}

void check_near(const std::vector<double>& numbers, const std::vector<double>& expected) {
  // Ranks add up what one process adds up in one go, in another order. In 64-bit floats that came
  // to 1.3e-15 after 60 steps of training; a gradient with a wrong factor shows in the third digit.
  constexpr double kTolerance = 1e-12;
  REQUIRE(numbers.size() == expected.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    // Catch prints 10 digits, with which the two may look alike.
    INFO("number " << i << ", relative difference " << numbers[i] / expected[i] - 1);
    CHECK(numbers[i] == Approx(expected[i]).epsilon(kTolerance));
  }
}

}  // namespace ronde::test
