// SPDX-License-Identifier: Apache-2.0
// Programs that bring MPI up themselves. MPI starts once a process: each case has its own.
#include <mpi.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/harness/case_table.h"

namespace ronde::test {
namespace {

void init_mpi(int level) {
  int provided = MPI_THREAD_SINGLE;
  REQUIRE(MPI_Init_thread(nullptr, nullptr, level, &provided) == MPI_SUCCESS);
  REQUIRE(provided == level);
}

int sum_by_mpi(int value) {
  int sum = 0;
  REQUIRE(MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS);
  return sum;
}

int mpi_size() {
  int size = 0;
  REQUIRE(MPI_Comm_size(MPI_COMM_WORLD, &size) == MPI_SUCCESS);
  return size;
}

void reduce_by_ronde() {
  std::vector<float> values(5000, 1.0F);
  Request request;
  request.name = "shared";
  request.shape = {5000};
  request.input = request.output = values.data();
  ronde::submit(std::move(request)).wait();
  CHECK(values == std::vector<float>(5000, static_cast<float>(ronde::size())));
}

void check_refused(int level, const std::string& name) {
  init_mpi(level);
  try {
    ronde::init();
    FAIL("init did not throw");
  } catch (const UsageError& error) {
    const std::string text = error.what();
    CAPTURE(text);
    CHECK(text.find("this program initialised MPI with " + name) != std::string::npos);
    CHECK(text.find("MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...)") != std::string::npos);
  }
  CHECK_FALSE(ronde::is_initialized());
  // The program's MPI is untouched.
  CHECK(sum_by_mpi(1) == mpi_size());
  CHECK(MPI_Finalize() == MPI_SUCCESS);
}

[[maybe_unused]] const bool kRegistered = [] {
  const std::vector<std::pair<int, std::string>> levels = {
      {MPI_THREAD_SINGLE, "MPI_THREAD_SINGLE"},
      {MPI_THREAD_FUNNELED, "MPI_THREAD_FUNNELED"},
      {MPI_THREAD_SERIALIZED, "MPI_THREAD_SERIALIZED"}};
  for (const auto& [level, name] : levels) {
    add_case("a program that initialised MPI with " + name + " is refused", "[own]",
             [level = level, name = name] { check_refused(level, name); });
  }
  return true;
}();

TEST_CASE("a program may call MPI itself while Ronde works, and goes on after it", "[own]") {
  init_mpi(MPI_THREAD_MULTIPLE);
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  for (int group = 0; group < 2; ++group) {
    ronde::init();
    CHECK(ronde::size() == mpi_size());
    std::thread worker([] {
      for (int i = 0; i < 200; ++i) reduce_by_ronde();
    });
    for (int i = 0; i < 200; ++i) CHECK(sum_by_mpi(i) == i * mpi_size());
    worker.join();
    ronde::shutdown();
    int is_finalized = 0;
    REQUIRE(MPI_Finalized(&is_finalized) == MPI_SUCCESS);
    CHECK(is_finalized == 0);
    CHECK(sum_by_mpi(group) == group * mpi_size());
  }
  CHECK(MPI_Finalize() == MPI_SUCCESS);
}

TEST_CASE("init after the program has finalised MPI is refused", "[own]") {
  init_mpi(MPI_THREAD_MULTIPLE);
  REQUIRE(MPI_Finalize() == MPI_SUCCESS);
  CHECK_THROWS_AS(ronde::init(), UsageError);
}

}  // namespace
}  // namespace ronde::test
