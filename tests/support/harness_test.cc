// SPDX-License-Identifier: Apache-2.0
// The test harness's own tests. The hidden cases are run by the others, in processes of their own.
#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <semaphore>
#include <sstream>
#include <stdexcept>
#include <string>

#include "watchdog.h"

namespace {

struct Outcome {
  int exit_status;
  std::string output;
};

// Runs a program as a shell would, and gathers what it prints.
Outcome run(const std::string& environment, const std::string& program,
            const std::string& arguments) {
  const std::string command = environment + " '" + program + "' " + arguments + " 2>&1";
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

Outcome run_self(const std::string& environment, const std::string& arguments) {
  return run(environment, std::filesystem::read_symlink("/proc/self/exe").string(), arguments);
}

// The names of the cases that ran, from Catch2's listing of durations.
std::string cases_run(const Outcome& outcome) {
  std::string names;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(" s: ");
    if (colon != std::string::npos) names += line.substr(colon + 4) + '\n';
  }
  return names;
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

TEST_CASE("a suite runs in one process, but for cases of their own and of other numbers of ranks") {
  const std::string arguments = "--ronde-run harness_subject -d yes";
  const Outcome anywhere = run("", HARNESS_SUBJECT, arguments);
  CAPTURE(anywhere.output);
  CHECK(anywhere.exit_status == 0);
  CHECK(cases_run(anywhere) ==
        "the rank's case fails, if it is told to\npasses afterwards\nruns on two ranks\n");
  const Outcome alone = run("RONDE_TEST_RANKS=1", HARNESS_SUBJECT, arguments);
  CHECK(cases_run(alone) == "the rank's case fails, if it is told to\npasses afterwards\n");
  CHECK(run("", HARNESS_SUBJECT, "--ronde-run no_such_suite").exit_status != 0);
}

TEST_CASE("a failed case is named with the command that runs it alone, and the others run") {
  const Outcome outcome = run("HARNESS_SUBJECT_FAILS=1 RONDE_TEST_COMMAND='mpiexec -n 1 subject'",
                              HARNESS_SUBJECT, "--ronde-run harness_subject -d yes");
  CAPTURE(outcome.output);
  CHECK(outcome.exit_status == 1);
  CHECK(outcome.output.find(
            "FAILED harness_subject: the rank's case fails, if it is told to\n"
            "  alone: mpiexec -n 1 subject 'the rank'\\''s case fails\\, if it is told to'\n") !=
        std::string::npos);
  CHECK(cases_run(outcome).find("passes afterwards") != std::string::npos);
}

TEST_CASE("among several ranks a failed case ends the process, as the others are elsewhere") {
  const Outcome outcome = run("HARNESS_SUBJECT_FAILS=1 RONDE_TEST_RANKS=2", HARNESS_SUBJECT,
                              "--ronde-run harness_subject -d yes");
  CAPTURE(outcome.output);
  CHECK(outcome.exit_status == 1);
  CHECK(outcome.output.find("FAILED harness_subject: ") != std::string::npos);
  CHECK(cases_run(outcome).find("passes afterwards") == std::string::npos);
}
