// SPDX-License-Identifier: Apache-2.0
// Worlds of processes that no launcher started. Hidden cases are a rank.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>

#include "ronde/ronde.h"
#include "tests/support/processes/file_ranks.h"
#include "tests/support/ranks/ranks.h"
#include "tests/worlds/world_sums.h"

namespace ronde::test {
namespace {

using Catch::Contains;

/// Of processes with these numbers, in this order.
World world_of(const std::string& name, const std::vector<int>& processes) {
  KeyValueStart start = start_by_files();
  start.rank = static_cast<int>(std::ranges::find(processes, start.rank) - processes.begin());
  start.size = static_cast<int>(processes.size());
  start.local_rank = -1;
  start.prefix += name;
  return World(name, {.key_value = start});
}

/// Sums in a world until it is dead.
void print_death(const World& world) {
  const Death death = death_of([&] {
    for (;;) sum_in(world.set(), 1);
  });
  std::cerr << world.name() << " lost rank " << death.rank << "\n";
}

TEST_CASE("helper: in worlds with and without the victim", "[.]") {
  constexpr int kVictim = 2;
  const int process = start_by_files().rank;
  World all = world_of("all", {0, 1, 2});
  World reversed = world_of("reversed", {2, 1, 0});
  CHECK(sum_in(all.set(), 1) == 3.0);
  CHECK(sum_in(reversed.set(), 1) == 3.0);
  if (process == kVictim) {
    sum_in(all.set(), 1);  // with the first of print_death(): the others have the sums above
    const std::string manner = started_with("WORLD_VICTIM");
    if (manner == "killed") raise(SIGKILL);
    if (manner == "aborts") std::abort();
    if (manner == "exits") std::exit(0);
    return;  // the Worlds are destroyed
  }
  World pair = world_of("pair", {1, 0});
  print_death(all);
  print_death(reversed);
  for (int i = 0; i < 50; ++i) CHECK(sum_in(pair.set(), i) == 2.0 * i);
  pair.shutdown();
}

TEST_CASE("the death of a rank is told in all worlds that it is in, and in no other") {
  const auto [manner, code] = GENERATE(table<std::string, int>(
      {{"killed", -SIGKILL}, {"aborts", -SIGABRT}, {"exits", 0}, {"forgets shutdown()", 0}}));
  INFO(manner);
  const auto results = run_file_ranks(3, "helper: in worlds with and without the victim",
                                      {{"WORLD_VICTIM", manner}, {"RONDE_LOG_LEVEL", "error"}});
  for (const int survivor : {0, 1}) {
    const CommandResult& result = results[static_cast<std::size_t>(survivor)];
    INFO(result.err);
    INFO(result.out);
    CHECK(result.exit_code == 0);
    CHECK_THAT(result.err, Contains("all lost rank 2\n"));
    CHECK_THAT(result.err, Contains("reversed lost rank 0\n"));
  }
  INFO(results[2].err);
  if (code == 0) {
    CHECK(results[2].exit_code == 0);
    CHECK_THAT(results[2].err, Contains("[ronde all rank 2] error: this rank leaves without "
                                        "World::shutdown()"));
    CHECK_THAT(results[2].err, Contains("[ronde reversed rank 0] error: this rank leaves"));
  } else {
    CHECK(results[2].exit_code != 0);
  }
}

TEST_CASE("helper: shuts down by atexit and makes a world after that", "[.]") {
  InitOptions options;
  options.key_value = start_by_files();
  init(options);
  REQUIRE(std::atexit([] { shutdown(); }) == 0);
  std::vector<int> ranks = {1, 0};
  World world("later", kGlobalSet, ranks);
  CHECK(sum_in(world.set(), 1) == 2.0);
  world.shutdown();
}

TEST_CASE("a world leaves the end of init() to what the program has registered for it") {
  const auto results =
      run_file_ranks(2, "helper: shuts down by atexit and makes a world after that", {});
  for (const CommandResult& result : results) {
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.err.find("without ronde::shutdown()") == std::string::npos);
  }
}

TEST_CASE("helper: forks with a world", "[.]") {
  World world = world_of("forked", {0});
  sum_in(world.set(), 1);
  const pid_t child = fork();
  if (child == 0) {
    int refused = 0;
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { sum_in(world.set(), 1); }, [&] { static_cast<void>(world.rank()); },
             [&] { world.add_process_set({0}); },
             [] { World("another", {.key_value = KeyValueStart{}}); }, [] { init(); }}) {
      try {
        call();
      } catch (const UsageError& error) {
        refused += std::string(error.what()).find("fork") != std::string::npos ? 1 : 0;
      }
    }
    { const World dropped = std::move(world); }
    std::_Exit(refused);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::cerr << "refused " << WEXITSTATUS(status) << "\n";
  CHECK(sum_in(world.set(), 1) == 1.0);
  world.shutdown();
}

TEST_CASE("a child of fork() is refused the worlds of its parent") {
  const auto results = run_file_ranks(1, "helper: forks with a world", {});
  INFO(results[0].err);
  CHECK(results[0].exit_code == 0);
  CHECK_THAT(results[0].err, Contains("refused 5\n"));
}

}  // namespace
}  // namespace ronde::test
