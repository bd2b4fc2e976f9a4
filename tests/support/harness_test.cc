// SPDX-License-Identifier: Apache-2.0
// The test harness's own tests. The hidden cases are run by the others, in processes of their own.
#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <semaphore>
#include <stdexcept>
#include <string>

#include "watchdog.h"

namespace {

struct Outcome {
  int exit_status;
  std::string output;
};

// Runs this program again, as a shell would, and gathers what it prints.
Outcome run_self(const std::string& environment, const std::string& arguments) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = environment + " '" + self + "' " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen failed: " + command);
  Outcome outcome{-1, ""};
  std::array<char, 4096> buffer{};
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.output.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  outcome.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

}  // namespace

TEST_CASE("hidden: waits for ever", "[.hangs]") {
  std::binary_semaphore never(0);
  never.acquire();
}

TEST_CASE("a name with, commas [brackets], \"quotes\", *stars* and ; semicolons is run", "[odd]") {
  SUCCEED();
}

TEST_CASE("~a name that starts like an exclusion is run", "[odd]") {
  SUCCEED();
}

TEST_CASE("the watchdog names a hanging case, its rank and its deadline") {
  const Outcome outcome = run_self("RONDE_TEST_DEADLINE_S=1 PMI_RANK=3", "'[.hangs]'");
  CAPTURE(outcome.output);
  CHECK(outcome.exit_status == 124);
  CHECK(outcome.output.find("watchdog: test 'hidden: waits for ever' on rank 3 exceeded 1 s") !=
        std::string::npos);
  CHECK(outcome.output.find("watchdog: thread ") != std::string::npos);
}

TEST_CASE("a program that runs no case fails") {
  const Outcome outcome = run_self("", "'no such case'");
  CAPTURE(outcome.output);
  CHECK(outcome.exit_status != 0);
}

TEST_CASE("a deadline that is no positive number is refused") {
  const Outcome outcome = run_self("RONDE_TEST_DEADLINE_S=soon", "'[odd]'");
  CAPTURE(outcome.output);
  CHECK(outcome.exit_status != 0);
  CHECK(outcome.output.find("RONDE_TEST_DEADLINE_S='soon'") != std::string::npos);
}
