// SPDX-License-Identifier: Apache-2.0
// The launch that is read from a launcher's variables.
#include "backends/socket/launched/launch.h"

#include <catch2/catch.hpp>
#include <map>

namespace {

using namespace ronde;
using Catch::Contains;
using Variables = std::map<std::string, std::string>;

std::optional<Launch> launch_of(const Variables& variables, std::uint64_t port = 0,
                                bool has_mpi = true) {
  return find_launch(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      port, has_mpi);
}

/// Adds variables; those of `more` override.
Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kTorchrun = {{"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "29500"},
                             {"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"TORCHELASTIC_RUN_ID", "a job"},
                             {"TORCHELASTIC_RESTART_COUNT", "1"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kPod = {
    {"MASTER_ADDR", "master-0"}, {"MASTER_PORT", "23456"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_JOB_ID", "1234"},
                          {"SLURM_STEP_ID", "2"},
                          {"SLURM_STEP_NODELIST", "node[07-08]"},
                          {"SLURM_STEP_NUM_NODES", "2"},
                          {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"},
                          {"SLURM_JOB_NODELIST", "node[01-08]"}};

}  // namespace

TEST_CASE("torchrun, what imitates it, and Slurm say who a rank is and where rank 0 awaits it") {
  struct Row {
    Variables variables;
    std::uint64_t port;
    Launch expected;
  };
  const std::vector<Row> rows = {
      {kTorchrun, 0, {3, 4, 1, "run 'a job'", "node1", "MASTER_ADDR", 29501, "MASTER_PORT + 1"}},
      {kTorchrun, 7777, {3, 4, 1, "run 'a job'", "node1", "MASTER_ADDR", 7777, "RONDE_PORT"}},
      {without(kTorchrun, "MASTER_PORT"),
       7777,
       {3, 4, 1, "run 'a job'", "node1", "MASTER_ADDR", 7777, "RONDE_PORT"}},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "4"}}),
       0,
       {3, 4, 1, "run 'a job'", "node1", "MASTER_ADDR", 29501, "MASTER_PORT + 1", true}},
      // srun of PMI started it, once a node.
      {with(kTorchrun, {{"PMI_SIZE", "2"}, {"PMIX_RANK", "1"}, {"SLURM_NTASKS", "2"}}),
       0,
       {3, 4, 1, "run 'a job'", "node1", "MASTER_ADDR", 29501, "MASTER_PORT + 1"}},
      {kPod, 0, {1, 2, -1, "run ''", "master-0", "MASTER_ADDR", 23457, "MASTER_PORT + 1"}},
      {kSlurm,
       0,
       {5, 8, 1, "Slurm's job 1234, step 2", "node07", "the first of Slurm's nodes", 22342,
        "Slurm's job and step"}},
      {with(without(kSlurm, "SLURM_LOCALID"), {{"SLURM_STEP_NUM_NODES", "1"}}),
       80,
       {5, 8, -1, "Slurm's job 1234, step 2", "node07", "the first of Slurm's nodes", 80,
        "RONDE_PORT", true}},
      {with(kSlurm, {{"MASTER_ADDR", "10.1.0.7"}, {"SLURM_STEP_NUM_NODES", "1"}}),
       0,
       {5, 8, 1, "Slurm's job 1234, step 2", "10.1.0.7", "MASTER_ADDR", 22342,
        "Slurm's job and step"}},
      {without(without(kSlurm, "SLURM_STEP_NODELIST"), "SLURM_JOB_NODELIST"),
       0,
       {5, 8, 1, "Slurm's job 1234, step 2", "10.0.0.9", "SLURM_LAUNCH_NODE_IPADDR", 22342,
        "Slurm's job and step"}},
      {with(kSlurm, {{"SLURM_JOB_ID", "67108864001"}}),
       0,
       {5, 8, 1, "Slurm's job 67108864001, step 2", "node07", "the first of Slurm's nodes", 20012,
        "Slurm's job and step"}},
      // A batch script has set them for all tasks.
      {with(kSlurm, {{"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node07"}}),
       0,
       {5, 8, 1, "Slurm's job 1234, step 2", "node07", "MASTER_ADDR", 22342,
        "Slurm's job and step"}},
      {with(kSlurm, kPod),
       0,
       {1, 2, -1, "run ''", "master-0", "MASTER_ADDR", 23457, "MASTER_PORT + 1"}}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    INFO("row " << i);
    const auto got = launch_of(rows[i].variables, rows[i].port);
    REQUIRE(got);
    Launch expected = rows[i].expected;
    expected.size_source = expected.job.starts_with("run") ? "WORLD_SIZE" : "SLURM_NTASKS";
    CAPTURE(got->problem, got->rank, got->size, got->local_rank, got->job, got->root_host);
    CAPTURE(got->host_source, got->port, got->port_source, got->one_host, got->size_source);
    CHECK((*got == expected));
  }
}

TEST_CASE("a rank that torchrun or its variables put alone does not join a step's other tasks") {
  const Variables alone = {{"WORLD_SIZE", "1"}, {"RANK", "0"}};
  const std::vector<Variables> rows = {
      with(kSlurm, alone),
      with(kSlurm, with(kTorchrun, alone)),
      with(kSlurm, {{"WORLD_SIZE", "1"}, {"TORCHELASTIC_RUN_ID", "a job"}}),
      with(with(kTorchrun, alone), {{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}),
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    INFO("row " << i);
    const auto launch = launch_of(rows[i]);
    REQUIRE(launch);
    CHECK(launch->problem == "");
    CHECK(launch->rank == 0);
    CHECK(launch->size == 1);
  }
  CHECK(launch_of(with(kSlurm, {{"WORLD_SIZE", "1"}}))->size == 8);
  CHECK_FALSE(launch_of(with(with(kSlurm, alone), {{"PMI_SIZE", "8"}})));
}

TEST_CASE("an MPI that asks Slurm itself is left the start, where there is MPI") {
  const Variables variables = with(kSlurm, {{"I_MPI_PMI_LIBRARY", "/usr/lib64/libpmi.so"}});
  CHECK_FALSE(launch_of(variables));
  CHECK(launch_of(variables, 0, false)->size == 8);
  CHECK(launch_of(with(kSlurm, {{"I_MPI_PMI_LIBRARY", ""}}))->size == 8);
  CHECK(launch_of(with(kTorchrun, variables))->size == 4);
}

TEST_CASE("one rank, an MPI launcher, and a batch script by itself are no such start") {
  const std::vector<Variables> rows = {
      {},
      {{"WORLD_SIZE", "4"}},
      {{"SLURM_NTASKS", "4"}},
      with(kTorchrun, {{"WORLD_SIZE", "1"}, {"RANK", "0"}}),
      with(kTorchrun, {{"WORLD_SIZE", "many"}}),
      with(kPod, {{"PMI_SIZE", "2"}}),
      with(kPod, {{"PMI_SIZE", "1"}}),
      with(kPod, {{"OMPI_COMM_WORLD_SIZE", "2"}}),
      with(kPod, {{"PMIX_RANK", "0"}}),
      with(kSlurm, {{"PMI_SIZE", "8"}}),
      with(kSlurm, {{"PMI_SIZE", "1"}}),
      with(kSlurm, {{"PMIX_RANK", "0"}}),
      with(kSlurm, {{"MPIRUN_RANK", "5"}}),
      with(kSlurm, {{"MV2_COMM_WORLD_RANK", "5"}}),
      with(kSlurm, {{"SLURM_NTASKS", "1"}}),
      without(kSlurm, "SLURM_STEP_ID"),
      with(kSlurm, {{"SLURM_STEP_ID", "4294967291"}}),  // of the batch script
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    INFO("row " << i);
    CHECK_FALSE(launch_of(rows[i]));
  }
}

TEST_CASE("launchers' variables that are missing or make no sense are named") {
  const std::vector<std::pair<Variables, std::string>> rows = {
      {without(kPod, "RANK"),
       "2 ranks by what sets WORLD_SIZE, but RANK is not set: a start needs"},
      {without(kPod, "MASTER_ADDR"), "MASTER_ADDR is not set"},
      {without(kPod, "MASTER_PORT"), "MASTER_PORT is not set"},
      {with(kPod, {{"MASTER_PORT", "65535"}}), "MASTER_PORT=65535 has no port after it"},
      {with(kPod, {{"MASTER_PORT", "-1"}}), "MASTER_PORT=-1 has no port after it"},
      {with(kPod, {{"RANK", "two"}}), "RANK=two is no number"},
      {with(kPod, {{"RANK", "2"}}), "rank 2 is none of 0 to 1"},
      {with(kTorchrun, {{"LOCAL_RANK", "x"}}), "by torchrun, but LOCAL_RANK=x is no number"},
      {without(kSlurm, "SLURM_PROCID"), "8 ranks by Slurm, but SLURM_PROCID is not set"},
      {without(kSlurm, "SLURM_JOB_ID"), "SLURM_JOB_ID is not set"},
      {Variables{{"SLURM_NTASKS", "2"},
                 {"SLURM_PROCID", "0"},
                 {"SLURM_JOB_ID", "1"},
                 {"SLURM_STEP_ID", "0"}},
       "SLURM_STEP_NODELIST is not set"}};
  for (const auto& [variables, text] : rows) {
    const auto launch = launch_of(variables);
    REQUIRE(launch);
    CHECK_THAT(launch->problem, Contains(text));
  }
}

TEST_CASE("the first host of a list in Slurm's writing") {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"node[01-04,7]", "node01"},
      {"node[7,01-04],other", "node7"},
      {"alone", "alone"},
      {"a,b[1-2]", "a"},
      {"rack[2-3]n[05-06].site,x", "rack2n05.site"},
      {"[10-11]", "10"},
      {"", ""},
      {"broken[", "broken"},
      {"broken[1", "broken1"},
      {"broken[]x", "brokenx"}};
  for (const auto& [list, host] : rows) CHECK(first_host(list) == host);
}
