// SPDX-License-Identifier: Apache-2.0
// The test harness's own tests. The hidden cases are run by the others, in processes of their own.
#include <catch2/catch.hpp>
#include <ctime>
#include <map>
#include <semaphore>
#include <sstream>

#include "tests/support/harness/captured_errors.h"
#include "tests/support/processes/beside.h"
#include "tests/support/processes/command.h"

namespace {

using Catch::Contains;
using Environment = std::map<std::string, std::string>;

struct Outcome {
  int exit_status;
  std::string output;
};

Outcome run(const Environment& environment, const std::vector<std::string>& words) {
  const auto result = ronde::test::run_program(words, environment);
  return {result.exit_code, result.out + result.err};
}

Outcome run_subject(const Environment& environment) {
  return run(environment, {HARNESS_SUBJECT, "--ronde-run", "harness_subject", "-d", "yes"});
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
  const ronde::test::CapturedErrors errors;  // what the watchdog writes is not among them
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
  const Outcome outcome =
      run({{"RONDE_TEST_DEADLINE_S", "1"}, {"PMI_RANK", "3"}}, {"/proc/self/exe", "[.hangs]"});
  CHECK(outcome.exit_status == 124);
  CHECK_THAT(outcome.output,
             Contains("watchdog: test 'hidden: waits for ever' on rank 3 exceeded 1 s") &&
                 Contains("watchdog: thread "));
  // What waits for a hidden case has three seconds more.
  const Outcome helper = run({{"RONDE_TEST_ENDS_AT", std::to_string(std::time(nullptr) + 5)}},
                             {"/proc/self/exe", "[.hangs]"});
  CHECK(helper.exit_status == 124);
  CHECK_THAT(helper.output, Contains("exceeded 2 s") || Contains("exceeded 1 s"));
}

TEST_CASE("a run of no case fails, and one whose deadline is no positive number") {
  CHECK(run({}, {"/proc/self/exe", "no such case"}).exit_status != 0);
  CHECK(run({}, {HARNESS_SUBJECT, "--ronde-run", "no_such_suite"}).exit_status != 0);
  const Outcome outcome = run({{"RONDE_TEST_DEADLINE_S", "soon"}}, {"/proc/self/exe", "[odd]"});
  CHECK(outcome.exit_status != 0);
  CHECK_THAT(outcome.output, Contains("RONDE_TEST_DEADLINE_S='soon'"));
}

TEST_CASE("a suite runs in one process, but for cases of their own and of other numbers of ranks") {
  const Outcome anywhere = run_subject({});
  CAPTURE(anywhere.output);
  CHECK(anywhere.exit_status == 0);
  const std::string on_any = "the rank's case fails, if it is told to\npasses afterwards\n";
  CHECK(cases_run(anywhere) == on_any + "runs on two ranks\n");
  CHECK(cases_run(run_subject({{"RONDE_TEST_RANKS", "1"}})) == on_any);
}

TEST_CASE(
    "a failed case is named with the command that runs it alone, and ends one of many ranks") {
  const Outcome alone =
      run_subject({{"HARNESS_SUBJECT_FAILS", "1"}, {"RONDE_TEST_COMMAND", "mpiexec -n 1 subject"}});
  CHECK(alone.exit_status == 1);
  CHECK_THAT(
      alone.output,
      Contains("FAILED harness_subject: the rank's case fails, if it is told to\n"
               "  alone: mpiexec -n 1 subject 'the rank'\\''s case fails\\, if it is told to'\n"));
  CHECK_THAT(cases_run(alone), Contains("passes afterwards"));

  // The other ranks are elsewhere by then.
  const Outcome among = run_subject({{"HARNESS_SUBJECT_FAILS", "1"}, {"RONDE_TEST_RANKS", "2"}});
  CHECK(among.exit_status == 1);
  CHECK_THAT(among.output, Contains("FAILED harness_subject: "));
  CHECK_THAT(cases_run(among), !Contains("passes afterwards"));
}
