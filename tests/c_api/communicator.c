/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of some of the launcher's ranks, in a program that initialises MPI itself. */
#include <mpi.h>

#include "check.h"

#define SUITE "communicator"

static int world_rank;
static int world_size;

/* A sum by Ronde is in flight while MPI sums over the same ranks. */
static void check_group_of(MPI_Comm comm, const ronde_init_options* options) {
  double value = world_rank + 1;
  double sum = world_rank + 1;
  int size = -1;
  int number = -1;
  ronde_work work = NULL;
  CHECK_OK(ronde_init(options));
  MPI_Comm_size(comm, &size);
  MPI_Comm_rank(comm, &number);
  CHECK(all_ranks() == size && own_rank() == number);
  CHECK_OK(start_sum("sum", &value, 1, RONDE_ALL_RANKS, &work));
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, comm);
  CHECK_OK(finish(work));
  CHECK(value == sum);
  CHECK_OK(ronde_shutdown());
}

/* Even and odd ranks are two groups at once, each in reverse order; then all are one. */
static void a_communicator(void) {
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, -world_rank, &half);
  const int handle = MPI_Comm_c2f(half);
  const ronde_init_options options = {.struct_size = sizeof(options), .mpi_comm = &handle};
  check_group_of(half, &options);
  MPI_Comm_free(&half);
  check_group_of(MPI_COMM_WORLD, NULL);
}

static void a_list_of_ranks(void) {
  const int ranks[] = {world_size - 1, 0};
  const int is_in = world_rank == 0 || world_rank == world_size - 1;
  const ronde_init_options options = {.struct_size = sizeof(options), .mpi_ranks = {ranks, 2}};
  MPI_Comm chosen = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, is_in, -world_rank, &chosen);
  if (is_in) {
    check_group_of(chosen, &options);
  } else {
    CHECK_FAILS(RONDE_E_USAGE, "of MPI_COMM_WORLD is not among", ronde_init(&options));
  }
  MPI_Comm_free(&chosen);
}

CASE_ON(-1, in_a_program_of_mpi) {
  const int rank = 0;
  const ronde_init_options options = {.struct_size = sizeof(options), .mpi_ranks = {&rank, 1}};
  int provided = MPI_THREAD_SINGLE;
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  CHECK_FAILS(RONDE_E_USAGE, "MPI is not initialised", ronde_init(&options));
  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
  CHECK(provided == MPI_THREAD_MULTIPLE);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  a_communicator();
  a_list_of_ranks();
  MPI_Finalize();
}
