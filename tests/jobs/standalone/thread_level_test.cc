// SPDX-License-Identifier: Apache-2.0
// Programs that bring MPI up themselves. MPI starts once a process: each case has its own.
#include <mpi.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/processes/launcher_rank.h"
#include "tests/support/processes/own_mpi.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {
namespace {

using Catch::Contains;

int sum_by_mpi(int value) {
  int sum = 0;
  REQUIRE(MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS);
  return sum;
}

Work start_sum(std::vector<float>& values) {
  return ronde::submit(sum_request(values, "shared"));
}

void reduce_by_ronde() {
  std::vector<float> values(5000, 1.0F);
  start_sum(values).wait();
  CHECK(values == std::vector<float>(5000, static_cast<float>(ronde::size())));
}

std::string refusal_of_init(const InitOptions& options = {}) {
  try {
    ronde::init(options);
  } catch (const UsageError& error) {
    CHECK_FALSE(ronde::is_initialized());
    return error.what();
  }
  return "init did not throw";
}

/// Two groups of the program's ranks after each other, and what is Ronde's after MPI_Finalize().
void check_meets_only(int level) {
  init_mpi(level);
  MPI_Comm reversed = MPI_COMM_NULL;
  REQUIRE(MPI_Comm_split(MPI_COMM_WORLD, 0, -rank_by_mpi(), &reversed) == MPI_SUCCESS);
  ronde::init({.mpi_communicator = MPI_Comm_c2f(reversed)});
  CHECK(MPI_Comm_free(&reversed) == MPI_SUCCESS);
  CHECK(ronde::rank() == size_by_mpi() - 1 - rank_by_mpi());
  reduce_by_ronde();
  ronde::shutdown();

  ronde::init();
  CHECK(ronde::rank() == rank_by_mpi());
  for (int i = 0; i < 200; ++i) {
    std::vector<float> values(5000, 1.0F);
    const Work work = start_sum(values);
    CHECK(sum_by_mpi(i) == i * size_by_mpi());  // Ronde calls no MPI meanwhile
    work.wait();
    CHECK(values == std::vector<float>(5000, static_cast<float>(size_by_mpi())));
  }
  CHECK(MPI_Finalize() == MPI_SUCCESS);
  reduce_by_ronde();
  ronde::shutdown();
}

/// Hosts of other names: UCX moves the data.
void check_several_hosts(int level) {
  init_mpi(level);
  setenv("RONDE_HOST_ID", ("host" + std::to_string(rank_by_mpi())).c_str(), 1);
  if (size_by_mpi() > 1 && !ronde::has_feature("ucx")) {
    CHECK_THAT(refusal_of_init(), Contains("are on different hosts"));
  } else {
    ronde::init();
    CHECK(ronde::local_size() == 1);
    reduce_by_ronde();
    ronde::shutdown();
  }
  CHECK(sum_by_mpi(1) == size_by_mpi());
  CHECK(MPI_Finalize() == MPI_SUCCESS);
}

void check_thread_that_may_not_call(int level, const std::string& name) {
  init_mpi(level);
  std::string text;
  std::thread([&] { text = refusal_of_init(); }).join();
  CHECK_THAT(text, Contains("this program initialised MPI with " + name) &&
                       Contains("call ronde::init() on that thread"));
  ronde::init();
  reduce_by_ronde();
  ronde::shutdown();
  CHECK(MPI_Finalize() == MPI_SUCCESS);
}

[[maybe_unused]] const bool kRegistered = [] {
  const std::vector<std::pair<int, std::string>> levels = {
      {MPI_THREAD_SINGLE, "MPI_THREAD_SINGLE"},
      {MPI_THREAD_FUNNELED, "MPI_THREAD_FUNNELED"},
      {MPI_THREAD_SERIALIZED, "MPI_THREAD_SERIALIZED"}};
  for (const auto& [level, name] : levels) {
    add_case("a program that initialised MPI with " + name + " meets by it and goes on without it",
             "[own]", [level = level] { check_meets_only(level); });
    add_case("ranks with " + name + " on several hosts", "[own]",
             [level = level] { check_several_hosts(level); });
    if (level == MPI_THREAD_SERIALIZED) continue;
    add_case("init on a thread to which " + name + " forbids MPI is refused", "[own]",
             [level = level, name = name] { check_thread_that_may_not_call(level, name); });
  }
  return true;
}();

TEST_CASE("init on any thread may call an MPI with MPI_THREAD_SERIALIZED", "[own]") {
  init_mpi(MPI_THREAD_SERIALIZED);
  std::thread([] { ronde::init(); }).join();
  reduce_by_ronde();
  ronde::shutdown();
  CHECK(MPI_Finalize() == MPI_SUCCESS);
}

TEST_CASE("ranks of the world are chosen at a low level as well", "[own][n2]") {
  init_mpi(MPI_THREAD_FUNNELED);
  for (const std::vector<int>& ranks : {std::vector{1, 0}, std::vector{0, 1}}) {
    ronde::init({.mpi_ranks = ranks});
    CHECK(ranks[static_cast<std::size_t>(ronde::rank())] == rank_by_mpi());
    reduce_by_ronde();
    ronde::shutdown();
  }
  CHECK(MPI_Finalize() == MPI_SUCCESS);
}

TEST_CASE("ranks with different levels are refused on all ranks", "[own][n2]") {
  const bool is_first = launched_rank() == 0;
  init_mpi(is_first ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED);
  CHECK_THAT(refusal_of_init(),
             Contains("rank 1 initialised MPI below MPI_THREAD_MULTIPLE, and rank 0 did not"));
  CHECK(MPI_Finalize() == MPI_SUCCESS);
}

TEST_CASE("a guest leaves the process as it is", "[own]") {
  const std::terminate_handler before = std::get_terminate();
  init_mpi(MPI_THREAD_MULTIPLE);
  CHECK_FALSE(ronde::is_guest());
  ronde::init();
  CHECK(ronde::is_guest());
  CHECK(std::get_terminate() == before);
  ronde::shutdown();
  CHECK(MPI_Finalize() == MPI_SUCCESS);
}

TEST_CASE("data over an MPI that Ronde may only start with is refused on all ranks", "[own]") {
  init_mpi(MPI_THREAD_FUNNELED);
  setenv("RONDE_CPU_BACKEND", "mpi", 1);
  CHECK_THAT(refusal_of_init(), Contains("RONDE_CPU_BACKEND=mpi needs MPI_THREAD_MULTIPLE, but "
                                         "this program initialised MPI with MPI_THREAD_FUNNELED"));
  setenv("RONDE_CPU_BACKEND", "auto", 1);
  ronde::init();
  reduce_by_ronde();
  ronde::shutdown();
  CHECK(MPI_Finalize() == MPI_SUCCESS);
}

TEST_CASE("a program may call MPI itself while Ronde works, and goes on after it", "[own]") {
  init_mpi(MPI_THREAD_MULTIPLE);
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  for (int group = 0; group < 2; ++group) {
    ronde::init();
    CHECK(ronde::size() == size_by_mpi());
    std::thread worker([] {
      for (int i = 0; i < 200; ++i) reduce_by_ronde();
    });
    for (int i = 0; i < 200; ++i) CHECK(sum_by_mpi(i) == i * size_by_mpi());
    worker.join();
    ronde::shutdown();
    int is_finalized = 0;
    REQUIRE(MPI_Finalized(&is_finalized) == MPI_SUCCESS);
    CHECK(is_finalized == 0);
    CHECK(sum_by_mpi(group) == group * size_by_mpi());
  }
  CHECK(MPI_Finalize() == MPI_SUCCESS);
}

TEST_CASE("MPI_Finalize shuts Ronde down while MPI still moves its data", "[own]") {
  init_mpi(MPI_THREAD_MULTIPLE);
  setenv("RONDE_CPU_BACKEND", "mpi", 1);
  ronde::init();
  const int rank = rank_by_mpi();
  const int ranks = size_by_mpi();
  std::vector<float> values(5000, 1.0F);
  const Work work = start_sum(values);
  if (rank > 0) ronde::shutdown();  // the others do by MPI_Finalize() alone
  CHECK(MPI_Finalize() == MPI_SUCCESS);
  work.wait();
  CHECK(values == std::vector<float>(5000, static_cast<float>(ranks)));
  CHECK_FALSE(ronde::is_initialized());
  ronde::shutdown();
}

TEST_CASE("MPI_Finalize gives up a shutdown in time, and shutdown then says why", "[own][n2]") {
  init_mpi(MPI_THREAD_MULTIPLE);
  setenv("RONDE_CPU_BACKEND", "mpi", 1);
  setenv("RONDE_SHUTDOWN_TIMEOUT_S", "0.2", 1);
  ronde::init();
  const bool comes = rank_by_mpi() == 0;
  while (!comes && !ronde::default_runtime().failure()) std::this_thread::yield();
  CHECK(MPI_Finalize() == MPI_SUCCESS);
  CHECK_THROWS_AS(ronde::shutdown(), GroupError);
  ronde::shutdown();  // told once
}

TEST_CASE("init after the program has finalised MPI is refused", "[own]") {
  init_mpi(MPI_THREAD_MULTIPLE);
  REQUIRE(MPI_Finalize() == MPI_SUCCESS);
  CHECK_THROWS_AS(ronde::init(), UsageError);
}

}  // namespace
}  // namespace ronde::test
