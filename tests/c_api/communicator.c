/* SPDX-License-Identifier: Apache-2.0 */
/* A group of some of the launcher's ranks, and worlds, in a program that brings MPI up itself. */
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

/* A communicator, and the world that is made from it. */
struct model {
  MPI_Comm comm;
  uint32_t world;
};

static struct model make_model(const char* name, int color) {
  struct model model = {MPI_COMM_NULL, 0};
  int by_mpi = -1;
  int number = -1;
  setenv("RONDE_CPU_BACKEND", "auto", 1); /* a world refuses MPI's */
  MPI_Comm_split(MPI_COMM_WORLD, color, -world_rank, &model.comm);
  MPI_Comm_rank(model.comm, &by_mpi);
  const int handle = MPI_Comm_c2f(model.comm);
  const ronde_init_options options = some_ranks(&handle, NULL, 0);
  CHECK_OK(ronde_world_make(name, &options, &model.world));
  CHECK_OK(ronde_rank(model.world, &number));
  CHECK(number == by_mpi);
  return model;
}

static void end_model(struct model* model) {
  CHECK_OK(ronde_world_shutdown(model->world));
  MPI_Comm_free(&model->comm);
}

/* Sums in both worlds, which may be one, are in flight while MPI sums over the same ranks. */
static void check_sums(const struct model* first, const struct model* second) {
  const struct model* const models[] = {first, second};
  double values[] = {world_rank + 1, world_rank + 1};
  ronde_work works[2];
  for (int i = 0; i < 2; ++i) CHECK_OK(start_sum("", &values[i], 1, models[i]->world, &works[i]));
  for (int i = 1; i >= 0; --i) {
    double sum = world_rank + 1;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, models[i]->comm);
    CHECK_OK(finish(works[i]));
    CHECK(values[i] == sum);
  }
}

/* Every rank calls it, with no operation of its own in flight. */
static void check_abort(uint32_t world) {
  int status = RONDE_OK;
  MPI_Barrier(MPI_COMM_WORLD);
  if (world_rank == 0) CHECK_OK(ronde_world_abort(world, "a planted end"));
  while (status == RONDE_OK) {
    double value = 1;
    ronde_work work = NULL;
    status = start_sum("sum", &value, 1, world, &work);
    if (status == RONDE_OK) status = finish(work);
  }
  CHECK_FAILS(RONDE_E_GROUP, "aborted: a planted end", status);
}

/* The worlds work without a group and beside one, and one outlives the other. */
static void two_worlds(void) {
  struct model half = make_model("half", world_rank % 2);
  struct model all = make_model("all", 0);
  for (int i = 0; i < 20; ++i) check_sums(&half, &all);
  CHECK_OK(ronde_init(NULL));
  check_sums(&half, &all);
  check_abort(all.world);
  end_model(&all);
  check_job_goes_on();
  CHECK_OK(ronde_shutdown());
  check_sums(&half, &half);
  end_model(&half);
}

/* A world needs no ronde_init(). */
static void results_in_memory_of_the_program(void) {
  struct model all = make_model("all", 0);
  const int64_t one = 1;
  double values[9] = {world_rank};
  const ronde_tensor in = tensor_of(values, &one, 1, RONDE_F64);
  ronde_tensor out = room_for(&values[1], 8, RONDE_F64);
  const ronde_operation_options options = named("gather", all.world);
  ronde_work work = NULL;
  CHECK_OK(ronde_allgather(&in, &out, &options, &work));
  CHECK_OK(finish(work));
  for (int i = 0; i < world_size; ++i) CHECK(values[1 + i] == world_size - 1 - i);
  end_model(&all);
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
    {"two worlds", two_worlds, ""},
    {"results in memory of the program", results_in_memory_of_the_program, ""},
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
