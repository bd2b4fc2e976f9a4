/* SPDX-License-Identifier: Apache-2.0 */
/* A group of some of the launcher's ranks, in a program that brings MPI up itself. */
#include <mpi.h>

#include "check.h"

static int world_rank;
static int world_size;

static ronde_init_options some_ranks(const int* comm, const int* ranks, int count) {
  ronde_init_options options = {0};
  options.struct_size = sizeof(options);
  options.mpi_comm = comm;
  options.mpi_ranks.ranks = ranks;
  options.mpi_ranks.count = count;
  return options;
}

/* Every number of Ronde's, against MPI's own sum over the same ranks. */
static void check_group_of(MPI_Comm expected, const ronde_init_options* options) {
  double value = world_rank + 1;
  double sum = 0;
  int number = -1;
  int expected_number = -1;
  ronde_work work = NULL;
  MPI_Allreduce(&value, &sum, 1, MPI_DOUBLE, MPI_SUM, expected);
  CHECK_OK(ronde_init(options));
  MPI_Comm_rank(expected, &expected_number);
  CHECK_OK(ronde_rank(RONDE_ALL_RANKS, &number));
  CHECK(number == expected_number);
  CHECK_OK(ronde_local_rank(&number));
  CHECK(number == expected_number);
  MPI_Comm_size(expected, &expected_number);
  CHECK_OK(ronde_size(RONDE_ALL_RANKS, &number));
  CHECK(number == expected_number);
  CHECK_OK(start_sum(NULL, &value, 1, RONDE_ALL_RANKS, &work));
  CHECK_OK(finish(work));
  CHECK(value == sum);
  CHECK_OK(ronde_shutdown());
}

/* Even and odd ranks are two groups at once, each in the reverse order; then all are one. */
static void a_communicator(const char* backend) {
  MPI_Comm half = MPI_COMM_NULL;
  setenv("RONDE_CPU_BACKEND", backend, 1);
  MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, -world_rank, &half);
  const int handle = MPI_Comm_c2f(half);
  const ronde_init_options options = some_ranks(&handle, NULL, 0);
  check_group_of(half, &options);
  MPI_Comm_free(&half);
  check_group_of(MPI_COMM_WORLD, NULL);
}

static void over_shared_memory(void) {
  a_communicator("auto");
}

static void over_mpi(void) {
  a_communicator("mpi");
}

static void a_list_of_ranks(void) {
  const int ranks[] = {world_size - 1, 0};
  const int is_in = world_rank == 0 || world_rank == world_size - 1;
  const ronde_init_options options = some_ranks(NULL, ranks, 2);
  MPI_Comm chosen = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, is_in, -world_rank, &chosen);
  if (is_in) {
    check_group_of(chosen, &options);
    check_group_of(chosen, &options); /* again: nothing of the first is left */
  } else {
    CHECK_FAILS(RONDE_E_USAGE, "of MPI_COMM_WORLD is not among", ronde_init(&options));
  }
  MPI_Comm_free(&chosen);
}

static void what_is_no_group(void) {
  const int null = MPI_Comm_c2f(MPI_COMM_NULL);
  const int nonsense = 123456789;
  const int twice[] = {0, 0};
  const int far[] = {0, 99};
  const int world = MPI_Comm_c2f(MPI_COMM_WORLD);
  ronde_init_options options = some_ranks(&null, NULL, 0);
  CHECK_FAILS(RONDE_E_USAGE, "is MPI_COMM_NULL", ronde_init(&options));
  options = some_ranks(&nonsense, NULL, 0);
  CHECK_FAILS(RONDE_E_USAGE, "handle 123456789", ronde_init(&options));
  options = some_ranks(NULL, twice, 2);
  CHECK_FAILS(RONDE_E_USAGE, "different ones of 0 to", ronde_init(&options));
  options = some_ranks(NULL, far, 2);
  CHECK_FAILS(RONDE_E_USAGE, "different ones of 0 to", ronde_init(&options));
  options = some_ranks(&world, twice, 1);
  CHECK_FAILS(RONDE_E_USAGE, "more than one of", ronde_init(&options));
  /* The program's own handler of errors is as it was. */
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
  CHECK(handler == MPI_ERRORS_ARE_FATAL);
  MPI_Errhandler_free(&handler);
  options = some_ranks(&world, NULL, 0);
  check_group_of(MPI_COMM_WORLD, &options);
}

static void two_sides(void) {
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm inter = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, world_rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - world_rank % 2, 0, &inter);
  const int handle = MPI_Comm_c2f(inter);
  const ronde_init_options options = some_ranks(&handle, NULL, 0);
  CHECK_FAILS(RONDE_E_USAGE, "inter-communicator", ronde_init(&options));
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
}

static void start_mpi(void) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
  CHECK(provided == MPI_THREAD_MULTIPLE);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
}

static void without_mpi(void) {
  const int rank = 0;
  const ronde_init_options options = some_ranks(NULL, &rank, 1);
  CHECK_FAILS(RONDE_E_USAGE, "MPI is not initialised", ronde_init(&options));
  start_mpi();
}

static const struct test_case kCommunicator[] = {
    {"over shared memory", over_shared_memory, ""},
    {"over MPI", over_mpi, ""},
    {"a list of ranks", a_list_of_ranks, ""},
    {"what is no group", what_is_no_group, ""},
    {"two sides", two_sides, ""},
    {"without MPI", without_mpi, "[n2][own]"},
    CASES_END,
};

static void run(const struct test_case* one) {
  if (world_size == 0 && one->body != without_mpi) start_mpi();
  one->body();
}

int main(int argc, char** argv) {
  static const struct suite suites[] = {{"communicator", kCommunicator}};
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  const int status = run_suites(argc, argv, suites, 1, run, ONE_PROCESS);
  if (world_size > 0) MPI_Finalize();
  return status;
}
