/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of some of the launcher's ranks, in a program that initialises MPI itself. */
#include <mpi.h>

#include "check.h"

#define SUITE "communicator"

/* A sum by Ronde is in flight while all ranks meet in MPI. */
static void check_group(const ronde_init_options* options, int rank, int size) {
  double value = 1;
  ronde_work work = NULL;
  CHECK_OK(ronde_init(options));
  CHECK(own_rank() == rank && all_ranks() == size);
  CHECK_OK(start_sum("sum", &value, 1, kSet, &work));
  MPI_Barrier(MPI_COMM_WORLD);
  CHECK_OK(finish(work));
  CHECK(value == size);
  CHECK_OK(ronde_shutdown());
}

/* Even and odd ranks are two groups at once, in reverse order; then all are one; then two are. */
CASE_ON(-1, in_a_program_of_mpi) {
  ronde_init_options options = {.struct_size = sizeof(options)};
  int provided = MPI_THREAD_SINGLE;
  int rank = 0;
  int size = 0;
  MPI_Comm half = MPI_COMM_NULL;
  options.mpi_ranks = (ronde_rank_list){&rank, 1};
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  CHECK_FAILS(RONDE_E_USAGE, "MPI is not initialised", ronde_init(&options));
  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
  CHECK(provided == MPI_THREAD_MULTIPLE);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  const int handle = MPI_Comm_c2f(half);
  const ronde_init_options of_half = {.struct_size = sizeof(of_half), .mpi_comm = &handle};
  check_group(&of_half, (size - 1 - rank) / 2, (size + 1 - rank % 2) / 2);
  MPI_Comm_free(&half);
  check_group(NULL, rank, size);
  const int chosen[] = {size - 1, 0};
  options.mpi_ranks = (ronde_rank_list){chosen, 2};
  if (rank == 0 || rank == size - 1) {
    check_group(&options, rank == 0, 2);
  } else {
    CHECK_FAILS(RONDE_E_USAGE, "of MPI_COMM_WORLD is not among", ronde_init(&options));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Finalize();
}
