// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <catch2/catch.hpp>

/// For programs that bring MPI up themselves.
namespace ronde::test {

inline void init_mpi(int level) {
  int provided = MPI_THREAD_SINGLE;
  REQUIRE(MPI_Init_thread(nullptr, nullptr, level, &provided) == MPI_SUCCESS);
  REQUIRE(provided == level);
}

inline int rank_by_mpi() {
  int rank = 0;
  REQUIRE(MPI_Comm_rank(MPI_COMM_WORLD, &rank) == MPI_SUCCESS);
  return rank;
}

inline int size_by_mpi() {
  int size = 0;
  REQUIRE(MPI_Comm_size(MPI_COMM_WORLD, &size) == MPI_SUCCESS);
  return size;
}

}  // namespace ronde::test
