// SPDX-License-Identifier: Apache-2.0
// Ranks that are started with variables as Slurm and Kubernetes set them. Hidden cases are a rank.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>

#include "ronde/ronde.h"
#include "tests/support/processes/command.h"
#include "tests/support/processes/file_ranks.h"
#include "tests/support/processes/reserved_port.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;
using Variables = std::map<std::string, std::string>;

constexpr int kRefused = 7;

/// What all ranks add up.
std::string report() {
  std::vector<float> values = {1};
  default_runtime().run(sum_request(values, "x"));
  return "rank " + std::to_string(ronde::rank()) + " of " +
         std::to_string(static_cast<int>(values[0])) + " met by " +
         default_runtime().transport_name() + ", data by " +
         default_runtime().backend_name(DeviceKind::Cpu) + "\n";
}

TEST_CASE("helper: a rank of a launcher", "[.]") {
  try {
    ronde::init();
  } catch (const UsageError& error) {
    std::cerr << error.what() << "\n";
    std::_Exit(kRefused);
  }
  std::cerr << report();  // in one piece: they share a file
  ronde::shutdown();
}

TEST_CASE("helper: a rank whose first life ends before it has met the others", "[.]") {
  const bool is_first_life = started_with("TORCHELASTIC_RESTART_COUNT") == "0";
  if (is_first_life && started_with("RANK") == "1") std::_Exit(3);
  ronde::init();
  std::cerr << report();
  ronde::shutdown();
}

/// Runs ranks whose variables `of_rank` gives.
std::vector<CommandResult> run_with(int size, const std::function<Variables(int)>& of_rank) {
  std::vector<CommandResult> results(static_cast<std::size_t>(size));
  run_ranks(size, [&](int rank) {
    results[static_cast<std::size_t>(rank)] =
        run_program({"/proc/self/exe", "helper: a rank of a launcher"}, of_rank(rank));
  });
  return results;
}

Variables of_pod(int rank, int size, const ReservedPort& port) {
  return {{"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port.number() - 1)},
          {"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)}};
}

Variables of_step(int rank, const ReservedPort& port) {
  return {{"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_LOCALID", std::to_string(rank)},
          {"SLURM_NTASKS", "3"},
          {"SLURM_JOB_ID", "17"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NUM_NODES", "1"},
          {"SLURM_STEP_NODELIST", "a-node-of-no-name[1-1]"},
          {"RONDE_PORT", std::to_string(port.number())}};
}

void check_started(const std::vector<CommandResult>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    INFO(results[rank].err);
    CHECK(results[rank].exit_code == 0);
    CHECK_THAT(results[rank].err,
               Contains("rank " + std::to_string(rank) + " of " + std::to_string(results.size()) +
                        " met by socket, data by shm"));
  }
}

}  // namespace

TEST_CASE("ranks start by the variables of Kubernetes and Slurm, with a key and without one") {
  const ReservedPort port;
  for (const std::string key : {"", "correct horse battery"}) {
    const auto with_key = [&](Variables variables) {
      variables["RONDE_JOB_KEY"] = key;
      return variables;
    };
    const auto pods = run_with(2, [&](int rank) { return with_key(of_pod(rank, 2, port)); });
    check_started(pods);
    CHECK(Contains("set RONDE_JOB_KEY").match(pods[0].err) == key.empty());
    const auto tasks = run_with(3, [&](int rank) { return with_key(of_step(rank, port)); });
    check_started(tasks);
    CHECK_THAT(tasks[0].err, !Contains("horse") && !Contains("set RONDE_JOB_KEY"));
  }
}

TEST_CASE("a rank that cannot start by its variables, or whose key is none, says so in one line") {
  const ReservedPort port;
  const auto refusal = [](const Variables& variables) {
    const CommandResult alone = run_with(1, [&](int) { return variables; })[0];
    CHECK(alone.exit_code == kRefused);
    return alone.err;
  };
  Variables variables = of_pod(1, 2, port);
  variables["RONDE_JOB_KEY"] = "short";
  variables["RONDE_FUSION_BYTES"] = "plenty";
  CHECK_THAT(refusal(variables), Contains("RONDE_JOB_KEY: it has 5 characters"));
  variables = of_pod(0, 2, port);
  variables.erase("MASTER_ADDR");
  CHECK_THAT(refusal(variables),
             Contains("MASTER_ADDR is not set: a start needs RANK, WORLD_SIZE"));
}

TEST_CASE("ranks with a key meet although a variable makes no sense, and all name it") {
  const ReservedPort port;
  for (const CommandResult& result : run_with(2, [&](int rank) {
         Variables variables = of_pod(rank, 2, port);
         variables["MASTER_PORT"] = "1";
         variables["RONDE_PORT"] = std::to_string(port.number());
         variables["RONDE_JOB_KEY"] = "correct horse battery";
         if (rank == 1) variables["RONDE_FUSION_BYTES"] = "plenty";
         return variables;
       })) {
    CHECK(result.exit_code == kRefused);
    CHECK_THAT(result.err, Contains("RONDE_FUSION_BYTES: \"plenty\""));
  }
}

TEST_CASE("ranks of several hosts start by their variables where there is UCX") {
  const ReservedPort port;
  const auto results = run_with(3, [&](int rank) {
    Variables variables = of_pod(rank, 3, port);
    variables["RONDE_HOST_ID"] = "host" + std::to_string(rank);
    variables["RONDE_REDUCESCATTER"] = "halving";
    variables["RONDE_JOB_KEY"] = "correct horse battery";
    return variables;
  });
  for (const CommandResult& result : results) {
    if (has_feature("ucx")) {
      CHECK(result.exit_code == 0);
      CHECK_THAT(result.err, Contains("of 3 met by socket, data by fabric"));
    } else {
      CHECK(result.exit_code == kRefused);
      CHECK_THAT(result.err,
                 Contains("rank 0 and rank 1 are on different hosts (host0 and host1)"));
    }
  }
  const bool warns =
      Contains("RONDE_REDUCESCATTER=halving does not suit 3 ranks").match(results[0].err);
  CHECK(warns == has_feature("ucx"));
}
