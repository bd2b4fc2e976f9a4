// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <iostream>

#include "ronde/ronde.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/processes/command.h"

// What a whole process prints and how it ends. The hidden cases are those processes.

namespace {

using Catch::Contains;
using ronde::test::CommandResult;
using ronde::test::occurrences;

CommandResult run_helper(const std::string& name,
                         const std::map<std::string, std::string>& environment = {}) {
  return ronde::test::run_program({"/proc/self/exe", "helper: " + name}, environment);
}

TEST_CASE("helper: comes and goes", "[.]") {
  ronde::init();
  ronde::barrier();
  ronde::shutdown();
}

TEST_CASE("helper: leaves without shutdown", "[.]") {
  ronde::init();
  ronde::barrier();
}

TEST_CASE("helper: exits with work in flight", "[.]") {
  ronde::init();
  ronde::barrier_async().on_done([] { std::cerr << "done\n"; });
  std::exit(3);
}

TEST_CASE("helper: fails to start", "[.]") {
  try {
    ronde::init();
  } catch (const ronde::UsageError& error) {
    std::cerr << error.what() << '\n';
    std::exit(7);
  }
}

TEST_CASE("a start says once, in one line, what differs from the defaults, and nothing else") {
  CommandResult result = run_helper("comes and goes", {{"HOROVOD_CYCLE_TIME", "3"}});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.err, Catch::EndsWith("[ronde rank 0] info: settings that differ from their "
                                         "defaults: RONDE_CYCLE_TIME_MS=3 (HOROVOD_CYCLE_TIME)\n"));
  CHECK(occurrences(result.err, "\n") == 1);
  result = run_helper("comes and goes");
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
}

TEST_CASE("an unknown variable is warned of when a program starts, even if it cannot") {
  CommandResult result =
      run_helper("comes and goes", {{"RONDE_CYCLETIME_MS", "3"}, {"RONDE_LOG_LEVEL", "warning"}});
  CHECK(result.exit_code == 0);
  CHECK(occurrences(result.err, "\n") == 1);
  CHECK_THAT(result.err, Contains("[ronde rank 0] warning: RONDE_CYCLETIME_MS is not a variable") &&
                             Contains("did you mean RONDE_CYCLE_TIME_MS?"));
  result =
      run_helper("fails to start", {{"RONDE_CYCLETIME_MS", "3"}, {"RONDE_CPU_BACKEND", "none"}});
  CHECK(result.exit_code == 7);
  CHECK_THAT(result.err, Contains("RONDE_CYCLETIME_MS is not a variable") &&
                             Contains("there is no backend \"none\""));
}

TEST_CASE("a process that ends without shutdown ends with its own exit code") {
  const auto [helper, exit_code] = GENERATE(
      table<std::string, int>({{"leaves without shutdown", 0}, {"exits with work in flight", 3}}));
  const CommandResult result = run_helper(helper);
  INFO(helper << ": " << result.err);
  CHECK(result.exit_code == exit_code);
}

TEST_CASE("a launcher that started others is recognised by a process that is alone") {
  for (const char* variable :
       {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "WORLD_SIZE", "HOROVOD_SIZE"}) {
    const CommandResult result = run_helper("fails to start", {{variable, "4"}});
    INFO(result.err);
    CHECK(result.exit_code == 7);
    CHECK_THAT(result.err, Contains(std::string(variable) + "=4") && Contains("alone"));
    CHECK_THAT(result.err, Contains(RONDE_MPI_IS_LINKED != 0 ? "mpiexec" : "RONDE_WITH_MPI"));
  }
}

}  // namespace
