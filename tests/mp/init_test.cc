// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "ronde/ronde.h"

// Errors of the init scope: nonsense, or disagreement between ranks, ends init with a UsageError on
// every rank. Each case is a process of its own on every rank.

namespace {

using Catch::Contains;

/// What the launcher says, as Ronde cannot be asked yet.
int launched_rank() {
  return std::stoi(std::getenv("PMI_RANK"));
}
int launched_size() {
  return std::stoi(std::getenv("PMI_SIZE"));
}
bool is_last_rank() {
  return launched_rank() == launched_size() - 1;
}

std::string last_rank() {
  return "rank " + std::to_string(launched_size() - 1);
}

void set(const char* name, const char* value) {
  REQUIRE(setenv(name, value, 1) == 0);
}

std::string usage_error_of_init() {
  try {
    ronde::init();
  } catch (const ronde::UsageError& error) {
    return error.what();
  }
  FAIL("init threw no UsageError on rank " << launched_rank());
  return "";
}

TEST_CASE("nonsense on one rank is a UsageError on every rank") {
  if (is_last_rank()) {
    set("RONDE_FUSION_BYTES", "64Mo");
  }
  CHECK_THAT(usage_error_of_init(),
             Contains(last_rank() + ": RONDE_FUSION_BYTES: \"64Mo\" is not"));
  CHECK_FALSE(ronde::is_initialized());
}

TEST_CASE("nonsense on rank 0 is a UsageError on every rank") {
  if (launched_rank() == 0) {
    set("RONDE_STALL_WARN_S", "-1");
  }
  CHECK_THAT(usage_error_of_init(), Contains("rank 0: RONDE_STALL_WARN_S: \"-1\" is not"));
}

TEST_CASE("the same nonsense on all ranks is told once", "[n3]") {
  set("RONDE_CYCLE_TIME_MS", "nan");
  CHECK_THAT(usage_error_of_init(), Catch::StartsWith("ranks 0-2: RONDE_CYCLE_TIME_MS: \"nan\""));
}

TEST_CASE("different nonsense on two ranks is told of both", "[n3]") {
  set("RONDE_CYCLE_TIME_MS", launched_rank() == 1 ? "soon" : "1");
  set("RONDE_CACHE_CAPACITY", launched_rank() == 2 ? "lots" : "8");
  const std::string text = usage_error_of_init();
  CHECK_THAT(text, Contains("rank 1: RONDE_CYCLE_TIME_MS: \"soon\""));
  CHECK_THAT(text, Contains("rank 2: RONDE_CACHE_CAPACITY: \"lots\""));
}

TEST_CASE("a configuration that differs is a UsageError that lists what each rank has",
          "[n2][n3][n4]") {
  if (is_last_rank()) {
    set("RONDE_FUSION_BYTES", "32MiB");
    set("RONDE_STALL_ABORT_S", "0");
  }
  const std::string others = launched_size() == 2   ? "rank 0"
                             : launched_size() == 3 ? "ranks 0,1"
                                                    : "ranks 0-2";
  const std::string text = usage_error_of_init();
  CHECK_THAT(text,
             Contains("RONDE_FUSION_BYTES: " + others + ": 64MiB, " + last_rank() + ": 32MiB"));
  CHECK_THAT(text, Contains("RONDE_STALL_ABORT_S: " + others + ": 600, " + last_rank() + ": 0"));
  CHECK_THAT(text, !Contains("RONDE_CYCLE_TIME_MS"));
}

TEST_CASE("the same value written differently does not differ", "[n2]") {
  set("RONDE_FUSION_BYTES", launched_rank() == 0 ? "1MiB" : "1048576B");
  set(launched_rank() == 0 ? "HOROVOD_CYCLE_TIME" : "RONDE_CYCLE_TIME_MS", "2.50");
  REQUIRE_NOTHROW(ronde::init());
  ronde::barrier();
  ronde::shutdown();
}

TEST_CASE("variables of each rank may differ", "[n2]") {
  set("RONDE_LOG_LEVEL", launched_rank() == 0 ? "warning" : "error");
  set("RONDE_COMPUTE_THREADS", launched_rank() == 0 ? "1" : "2");
  set("RONDE_THREAD_AFFINITY", launched_rank() == 0 ? "0,0" : "0,0,0");
  REQUIRE_NOTHROW(ronde::init());
  ronde::barrier();
  ronde::shutdown();
}

TEST_CASE("a list of cores that is too short on one rank is told to all", "[n3]") {
  if (is_last_rank()) {
    set("RONDE_THREAD_AFFINITY", "0,0");
  }
  CHECK_THAT(
      usage_error_of_init(),
      Contains(last_rank() + ": RONDE_THREAD_AFFINITY: \"0,0\" lists 2 cores for the 3 ranks"));
}

TEST_CASE("a backend that only some ranks have registered is told to all", "[n2]") {
  set("RONDE_CPU_BACKEND", "mine");
  if (launched_rank() == 0) {
    ronde::BackendFactory factory;
    factory.create = [](ronde::BackendContext&) -> std::unique_ptr<ronde::Backend> {
      throw ronde::Error("must not be reached");
    };
    ronde::register_backend("mine", std::move(factory));
  }
  CHECK_THAT(usage_error_of_init(),
             Contains("rank 1: RONDE_CPU_BACKEND: there is no backend \"mine\""));
}

TEST_CASE("a launcher of another MPI is a UsageError", "[n1]") {
  set("OMPI_COMM_WORLD_SIZE", "4");
  CHECK_THAT(usage_error_of_init(), Contains("OMPI_COMM_WORLD_SIZE=4") && Contains("MPICH"));
  CHECK_FALSE(ronde::is_initialized());
}

TEST_CASE("a second init is refused and the group goes on") {
  ronde::init();
  CHECK_THROWS_AS(ronde::init(), ronde::UsageError);
  ronde::barrier();
  CHECK(ronde::size() == launched_size());
  CHECK(ronde::rank() == launched_rank());
  ronde::shutdown();
}

TEST_CASE("init after shutdown says that MPI starts once in a process") {
  ronde::init();
  ronde::shutdown();
  CHECK_THAT(usage_error_of_init(), Contains("MPI is finalised"));
  CHECK_THROWS_AS(ronde::rank(), ronde::UsageError);
}

/// MPI as a program starts it that uses it itself.
class OwnMpi {
 public:
  explicit OwnMpi(int level) {
    REQUIRE(MPI_Init_thread(nullptr, nullptr, level, &provided_) == MPI_SUCCESS);
    REQUIRE(provided_ >= level);
  }
  ~OwnMpi() { MPI_Finalize(); }

 private:
  int provided_ = 0;
};

TEST_CASE("where the program owns MPI init can be tried again, and repeated") {
  const OwnMpi mpi(MPI_THREAD_MULTIPLE);
  if (is_last_rank()) {
    set("RONDE_CACHE_CAPACITY", "-3");
  }
  CHECK_THAT(usage_error_of_init(), Contains(last_rank() + ": RONDE_CACHE_CAPACITY"));
  CHECK_FALSE(ronde::is_initialized());
  REQUIRE(unsetenv("RONDE_CACHE_CAPACITY") == 0);
  for (int round = 0; round < 3; ++round) {
    ronde::init();
    ronde::barrier();
    CHECK(ronde::size() == launched_size());
    ronde::shutdown();
  }
}

}  // namespace
