// SPDX-License-Identifier: Apache-2.0
// Errors of the init scope: nonsense, or disagreement between ranks, ends init with a UsageError on
// every rank. The program owns MPI, but in the cases that have a process of their own.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "ronde/ronde.h"
#include "tests/support/oracle/plain_mpi.h"
#include "tests/support/processes/launcher_rank.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

using Catch::Contains;

bool is_last_rank() {
  return launched_rank() == launched_size() - 1;
}

std::string last_rank() {
  return "rank " + std::to_string(launched_size() - 1);
}

/// The text with which init refuses the variables that this rank has.
std::string refusal_of(const Variables& variables) {
  for (const auto& [name, value] : variables) REQUIRE(setenv(name.c_str(), value.c_str(), 1) == 0);
  const std::string text = text_of<UsageError>([] { ronde::init(); });
  for (const auto& [name, value] : variables) unsetenv(name.c_str());
  CHECK_FALSE(ronde::is_initialized());
  return text;
}

/// The same where the program owns MPI.
std::string refusal_with_own_mpi(const Variables& variables) {
  static_cast<void>(PlainMpi::instance());
  return refusal_of(variables);
}

/// A variable that one rank has.
Variables only_on(int rank, const std::string& name, const std::string& value) {
  return launched_rank() == rank ? Variables{{name, value}} : Variables();
}

TEST_CASE("nonsense on one rank is a UsageError on every rank", "[own]") {
  CHECK_THAT(refusal_of(only_on(launched_size() - 1, "RONDE_FUSION_BYTES", "64Mo")),
             Contains(last_rank() + ": RONDE_FUSION_BYTES: \"64Mo\" is not"));
}

TEST_CASE("an error names every rank that has a bad value", "[n3]") {
  CHECK_THAT(refusal_with_own_mpi({{"RONDE_CYCLE_TIME_MS", "nan"}}),
             Catch::StartsWith("ranks 0-2: RONDE_CYCLE_TIME_MS: \"nan\""));
  CHECK_THAT(refusal_with_own_mpi({{"RONDE_CYCLE_TIME_MS", launched_rank() == 1 ? "soon" : "1"},
                                   {"RONDE_CACHE_CAPACITY", launched_rank() == 2 ? "lots" : "8"}}),
             Contains("rank 1: RONDE_CYCLE_TIME_MS: \"soon\"") &&
                 Contains("rank 2: RONDE_CACHE_CAPACITY: \"lots\""));
  // Two cores suffice for two ranks, not for three.
  CHECK_THAT(refusal_with_own_mpi(only_on(2, "RONDE_THREAD_AFFINITY", "0,0")),
             Contains("rank 2: RONDE_THREAD_AFFINITY: \"0,0\" lists 2 cores for the 3 ranks"));
}

TEST_CASE("a configuration that differs is a UsageError that lists what each rank has",
          "[n2][n3][n4]") {
  Variables variables;
  if (is_last_rank()) {
    variables = {{"RONDE_FUSION_BYTES", "32MiB"}, {"RONDE_STALL_ABORT_S", "0"}};
  }
  const std::string others = launched_size() == 2   ? "rank 0"
                             : launched_size() == 3 ? "ranks 0,1"
                                                    : "ranks 0-2";
  const std::string text = refusal_with_own_mpi(variables);
  CHECK_THAT(text,
             Contains("RONDE_FUSION_BYTES: " + others + ": 64MiB, " + last_rank() + ": 32MiB"));
  CHECK_THAT(text, Contains("RONDE_STALL_ABORT_S: " + others + ": 600, " + last_rank() + ": 0"));
  CHECK_THAT(text, !Contains("RONDE_CYCLE_TIME_MS"));
}

TEST_CASE("a value may be written differently, and some may differ between ranks", "[n2]") {
  const bool is_first = launched_rank() == 0;
  with_group([](PlainMpi&) { ronde::barrier(); },
             {{"RONDE_FUSION_BYTES", is_first ? "1MiB" : "1048576B"},
              {is_first ? "HOROVOD_CYCLE_TIME" : "RONDE_CYCLE_TIME_MS", "2.50"},
              {"RONDE_LOG_LEVEL", is_first ? "warning" : "error"},
              {"RONDE_COMPUTE_THREADS", is_first ? "1" : "2"},
              {"RONDE_THREAD_AFFINITY", is_first ? "0,0" : "0,0,0"}});
}

TEST_CASE("a backend that only some ranks have registered is told to all", "[n2][own]") {
  if (launched_rank() == 0) {
    BackendFactory factory;
    factory.create = [](BackendContext&) -> std::unique_ptr<Backend> {
      throw Error("must not be reached");
    };
    ronde::register_backend("mine", std::move(factory));
  }
  CHECK_THAT(refusal_of({{"RONDE_CPU_BACKEND", "mine"}}),
             Contains("rank 1: RONDE_CPU_BACKEND: there is no backend \"mine\""));
}

TEST_CASE("a launcher of another MPI is a UsageError", "[n1][own]") {
  CHECK_THAT(refusal_of({{"OMPI_COMM_WORLD_SIZE", "4"}}),
             Contains("OMPI_COMM_WORLD_SIZE=4") && Contains("MPICH"));
  // MPI has started, and Hydra may take an end without MPI_Finalize for a crash.
  ronde::init();
  ronde::shutdown();
}

TEST_CASE("init after shutdown says that MPI starts once in a process", "[own]") {
  ronde::init();
  ronde::shutdown();
  CHECK_THAT(refusal_of({}), Contains("MPI is finalised in this process"));
  CHECK_THROWS_AS(ronde::rank(), UsageError);
}

TEST_CASE("where the program owns MPI init can be tried again, and repeated") {
  CHECK_THAT(refusal_with_own_mpi(only_on(0, "RONDE_STALL_WARN_S", "-1")),
             Contains("rank 0: RONDE_STALL_WARN_S: \"-1\" is not"));
  CHECK_THAT(refusal_of(only_on(launched_size() - 1, "RONDE_CACHE_CAPACITY", "-3")),
             Contains(last_rank() + ": RONDE_CACHE_CAPACITY"));
  for (int round = 0; round < 3; ++round) {
    ronde::init();
    CHECK_THROWS_AS(ronde::init(), UsageError);  // the group goes on
    ronde::barrier();
    CHECK(ronde::size() == launched_size());
    CHECK(ronde::rank() == launched_rank());
    ronde::shutdown();
  }
}

}  // namespace
}  // namespace ronde::test
