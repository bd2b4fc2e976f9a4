// SPDX-License-Identifier: Apache-2.0
// Ranks that no launcher started, as processes that meet through files. The hidden case is a rank.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>

#include "backends/compose.h"
#include "ronde/runtime.h"
#include "tests/support/file_ranks.h"
#include "tests/support/ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;

constexpr int kGroupError = 9;

float sum_of_ranks(Runtime& runtime) {
  float value = static_cast<float>(runtime.topology().rank);
  Request request;
  request.name = "rank";
  request.shape = {1};
  request.input = request.output = &value;
  runtime.run(std::move(request));
  return value;
}

/// What the victim does after the first sum.
void end_as(const std::string& manner) {
  if (manner == "killed") ::raise(SIGKILL);
  if (manner == "exits") std::_Exit(3);
}

TEST_CASE("helper: a rank", "[.]") {
  const KeyValueStart start = start_by_files();
  const Config config = test_config();
  BuiltIn built_in = compose_without_launcher(config, start);
  RuntimeOptions options;
  options.config = config;
  options.make_transport = std::move(built_in.make_transport);
  options.make_board = std::move(built_in.make_board);
  options.backends = std::move(built_in.backends);
  try {
    Runtime runtime(std::move(options));
    std::cerr << "sum " << sum_of_ranks(runtime) << " by " << runtime.backend_name(DeviceKind::Cpu)
              << "\n";
    if (start.rank == start.size - 1) end_as(started_with("START_VICTIM"));
    sum_of_ranks(runtime);
    runtime.shutdown();
  } catch (const GroupError& error) {
    std::cerr << "group " << error.failed_rank() << ": " << error.what() << "\n";
    std::_Exit(kGroupError);
  }
}

/// The last rank ends in the way of `victim`, if it is not empty.
std::vector<CommandResult> run_processes(int size, const std::string& victim = "") {
  // As one rank of a foreign launcher would see it: it must not matter.
  return run_file_ranks(size, "helper: a rank", {{"START_VICTIM", victim}, {"PMI_SIZE", "7"}});
}

}  // namespace

TEST_CASE("processes that meet through files compute over shared memory") {
  for (const int size : {1, 2, 4}) {
    INFO(size << " ranks");
    const std::string sum = "sum " + std::to_string(size * (size - 1) / 2) + " by shm\n";
    for (const CommandResult& result : run_processes(size)) {
      INFO(result.err);
      CHECK(result.exit_code == 0);
      CHECK_THAT(result.err, Contains(sum));
    }
  }
}

TEST_CASE("the death of a rank is a GroupError on the others that names it") {
  for (const std::string victim : {"killed", "exits"}) {
    INFO(victim);
    const std::vector<CommandResult> results = run_processes(3, victim);
    for (const std::size_t survivor : {0, 1}) {
      INFO(results[survivor].err);
      CHECK(results[survivor].exit_code == kGroupError);
      CHECK_THAT(results[survivor].err, Contains("group 2: rank 2 "));
    }
    CHECK(results[2].exit_code == (victim == "killed" ? -1 : 3));
  }
}
