// SPDX-License-Identifier: Apache-2.0
#include "launch.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

#include "tests/support/temporary_folder.h"

namespace ronde::test {

CommandResult launch(int ranks, const std::vector<std::string>& options,
                     std::map<std::string, std::string> environment) {
  std::vector<std::string> words = {"/usr/bin/env",
                                    "timeout",
                                    "-k",
                                    "5",
                                    "60",
                                    TEST_LAUNCHER_PROGRAM,
                                    TEST_LAUNCHER_COUNT,
                                    std::to_string(ranks),
                                    TEST_PROGRAM};
  words.insert(words.end(), options.begin(), options.end());
  environment.emplace("OMP_NUM_THREADS", "1");
  return run_program(words, environment);
}

bool failed_in_time(const CommandResult& result) {
  constexpr int kTimedOut = 124;
  return result.exit_code > 0 && result.exit_code != kTimedOut;
}

std::string launch_well(int ranks, const std::vector<std::string>& options) {
  const CommandResult result = launch(ranks, options);
  INFO(ranks << " ranks:\n" << result.out << result.err);
  REQUIRE(result.exit_code == 0);
  return result.out;
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
