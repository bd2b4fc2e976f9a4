/* SPDX-License-Identifier: Apache-2.0 */
/* What one process sees by itself: the start, and what works without one. */
#include <dlfcn.h>
#include <math.h>

#include "check.h"
#include "store.h"

static ronde_work none;

static int start_one(double* value, ronde_work* work) {
  return start_sum(NULL, value, 1, RONDE_ALL_RANKS, work);
}

/* Every function that needs the group. */
static void expect_not_initialized(void) {
#define NEEDS_INIT(call) \
  CHECK_FAILS(RONDE_E_NOT_INITIALIZED, "call it after ronde_init() and before", call)
  double value = 1;
  const int64_t shape[] = {1};
  ronde_tensor tensor = tensor_of(&value, shape, 1, RONDE_F64);
  char text[8];
  int number = 0;
  uint32_t set = 0;
  NEEDS_INIT(ronde_rank(0, &number));
  NEEDS_INIT(ronde_size(0, &number));
  NEEDS_INIT(ronde_local_rank(&number));
  NEEDS_INIT(ronde_local_size(&number));
  NEEDS_INIT(ronde_cross_rank(&number));
  NEEDS_INIT(ronde_cross_size(&number));
  NEEDS_INIT(ronde_is_homogeneous(&number));
  NEEDS_INIT(ronde_process_set_add(&number, 1, &set));
  NEEDS_INIT(ronde_process_set_create(&number, 1, NULL, &set));
  NEEDS_INIT(ronde_process_set_remove(1));
  NEEDS_INIT(ronde_process_set_ids(NULL, &number));
  NEEDS_INIT(ronde_process_set_ranks(0, NULL, &number));
  NEEDS_INIT(ronde_process_set_included(0, &number));
  NEEDS_INIT(start_one(&value, &none));
  NEEDS_INIT(ronde_broadcast(&tensor, &tensor, NULL, &none));
  NEEDS_INIT(ronde_allgather(&tensor, &tensor, NULL, &none));
  NEEDS_INIT(ronde_alltoall(&tensor, NULL, NULL, &none));
  NEEDS_INIT(ronde_reducescatter(&tensor, &tensor, NULL, &none));
  NEEDS_INIT(ronde_send(&tensor, NULL, NULL, &none));
  NEEDS_INIT(ronde_recv(NULL, &tensor, NULL, &none));
  NEEDS_INIT(ronde_barrier(NULL, &none));
  NEEDS_INIT(ronde_join(0, &none));
  NEEDS_INIT(ronde_group_begin(0));
  CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_cancel());
  NEEDS_INIT(ronde_abort("x"));
  NEEDS_INIT(ronde_stats_json(text, sizeof(text)));
  CHECK(none == NULL);
  CHECK(ronde_is_initialized() == 0);
  CHECK_OK(ronde_shutdown()); /* nothing to leave */
}

static void everything_else_needs_init(void) {
  CHECK(ronde_last_error()[0] == '\0');
  expect_not_initialized();
  CHECK_OK(ronde_init(NULL));
  CHECK_OK(ronde_shutdown());
  expect_not_initialized();
}

static void versions_and_features(void) {
  static const char* const yes[] = {"shm",    "key_value", "process_sets", "send_recv",
                                    "groups", "join",      "streams",      "timeline"};
  static const char* const no[] = {"quantum", ""};
  for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); ++i) CHECK(ronde_has(yes[i]) == 1);
  for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); ++i) CHECK(ronde_has(no[i]) == 0);
  CHECK(ronde_has(NULL) == 0);
  CHECK(ronde_feature_version(NULL) == 0);
  CHECK(ronde_feature_version("groups") == 1);
  /* Of GPUs it is asked what is there. */
  if (dlopen("libcuda.so.1", RTLD_LAZY) == NULL) CHECK(!ronde_has("cuda") && !ronde_has("nccl"));
  if (dlopen("libnccl.so.2", RTLD_LAZY) == NULL) CHECK(!ronde_has("nccl"));
  CHECK((ronde_feature_version("nccl") >= 20000) == ronde_has("nccl"));
  CHECK(ronde_has("mpi") == ronde_has("mpi_communicator"));
  CHECK(strcmp(ronde_version(), RONDE_TEST_VERSION) == 0);
}

static void works_outlive_the_group(void) {
  double value = 3;
  double other = 3;
  ronde_work work = NULL;
  ronde_work owner = NULL;
  void* data = NULL;
  CHECK_OK(ronde_init(NULL));
  CHECK_OK(start_one(&value, &work));
  CHECK_OK(start_gather("x", &other, 1, RONDE_ALL_RANKS, &owner));
  CHECK_OK(ronde_shutdown());
  CHECK_OK(finish(work));
  CHECK_OK(ronde_work_output(owner, &data, NULL, NULL, NULL));
  CHECK(*(double*)data == 3);
  CHECK_OK(ronde_work_free(owner));
}

/* A program that was compiled with another header. */
static void options_of_other_versions(void) {
  struct newer {
    ronde_init_options known;
    void* more;
  } newer;
  ronde_init_options options = {0};
  memset(&newer, 0, sizeof(newer));
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "struct_size", ronde_init(&options));
  newer.known.struct_size = sizeof(newer);
  newer.more = &newer;
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "does not know", ronde_init(&newer.known));
  newer.more = NULL;
  newer.known.size = 1;
  CHECK_OK(ronde_init(&newer.known));
  CHECK_OK(ronde_shutdown());
  /* An older one ends earlier: what comes after is not looked at. */
  options.struct_size = offsetof(ronde_init_options, rank);
  options.size = -7;
  options.put = store_put;
  CHECK_OK(ronde_init(&options));
  CHECK_OK(ronde_shutdown());
}

/* The same of what operations take. */
static void tensors_of_other_versions(void) {
  struct newer {
    ronde_tensor known;
    void* more;
  } newer = {RONDE_TENSOR_INIT, NULL};
  struct newer_options {
    ronde_operation_options known;
    double more;
  } newer_options = {RONDE_OPERATION_OPTIONS_INIT, 0};
  float value = 2;
  ronde_work work = NULL;
  CHECK_OK(ronde_init(NULL));
  newer.known.struct_size = sizeof(newer);
  newer.known.data = &value;
  newer.known.dtype = RONDE_F32;
  newer_options.known.struct_size = sizeof(newer_options);
  newer_options.known.prescale = 3;
  CHECK_OK(ronde_allreduce(&newer.known, &newer.known, &newer_options.known, &work));
  CHECK_OK(finish(work));
  CHECK(value == 6);
  newer_options.more = 1;
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "a ronde_operation_options has fields that this version",
              ronde_allreduce(&newer.known, &newer.known, &newer_options.known, &work));
  newer_options.more = 0;
  newer.more = &newer;
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "a ronde_tensor has fields that this version",
              ronde_allreduce(&newer.known, &newer.known, NULL, &work));
  /* An older one ends earlier: what comes after is not looked at, and has its default. */
  newer.known.struct_size = offsetof(ronde_tensor, stream);
  newer.known.stream = &value;
  newer.known.capacity = 0;
  newer_options.known.struct_size = offsetof(ronde_operation_options, postscale);
  newer_options.known.postscale = NAN;
  newer_options.known.process_set = 77;
  CHECK_OK(ronde_allreduce(&newer.known, &newer.known, &newer_options.known, &work));
  CHECK_OK(finish(work));
  CHECK(value == 18);
  CHECK_OK(ronde_shutdown());
}

static void expect_bad_options(ronde_init_options options, int code, const char* part) {
  options.struct_size = sizeof(options);
  CHECK_FAILS(code, part, ronde_init(&options));
  CHECK(!ronde_is_initialized());
}

static void options_that_make_no_sense(void) {
  static const int ranks[] = {0, -4};
  static const int comm = 0;
  const ronde_rank_list lists[] = {{ranks, 1}, {ranks, 0}, {NULL, 2}, {ranks, -2}, {ranks, 2}};
#define INVALID(part, ...) \
  expect_bad_options((ronde_init_options){__VA_ARGS__}, RONDE_E_INVALID_ARGUMENT, part)
#define USAGE(part, ...) expect_bad_options((ronde_init_options){__VA_ARGS__}, RONDE_E_USAGE, part)
  INVALID("process_sets is NULL", .process_set_count = 1);
  INVALID("process_set_count is negative", .process_sets = lists, .process_set_count = -1);
  INVALID("ranks is NULL", .process_sets = &lists[2], .process_set_count = 1);
  INVALID("negative count", .process_sets = &lists[3], .process_set_count = 1);
  INVALID("ranks is NULL", .mpi_ranks = {NULL, 3});
  INVALID("size is negative", .size = -1);
  INVALID("but no size", .put = store_put);
  INVALID("but no size", .rank = 2);
  INVALID("but no size", .local_rank = 2);
  USAGE("empty or has a negative rank", .size = 1, .process_sets = lists, .process_set_count = 2);
  USAGE("empty or has a negative rank", .size = 1, .process_sets = &lists[4],
        .process_set_count = 1);
  if (ronde_has("mpi_communicator")) {
    USAGE("more than one of", .size = 1, .mpi_comm = &comm);
  } else {
    expect_bad_options((ronde_init_options){.mpi_comm = &comm}, RONDE_E_UNSUPPORTED, "has no MPI");
  }
  USAGE("rank 3 of 2", .size = 2, .rank = 3);
  USAGE("both put and get", .size = 2, .put = store_put);
  USAGE("local rank 5", .size = 1, .local_rank = 5);
#undef INVALID
#undef USAGE
}

static void sets_at_the_start(void) {
  static const int self[] = {0};
  static const int outside[] = {1};
  const ronde_rank_list lists[] = {{self, 1}, {self, 1}};
  const ronde_rank_list bad[] = {{outside, 1}};
  ronde_init_options options = {0};
  uint32_t ids[4];
  int count = 4;
  options.struct_size = sizeof(options);
  options.size = 1;
  options.process_sets = lists;
  options.process_set_count = 2;
  setenv("RONDE_PROCESS_SETS", "0", 1);
  CHECK_OK(ronde_init(&options));
  CHECK_OK(ronde_process_set_ids(ids, &count));
  CHECK(count == 4 && ids[0] == 0 && ids[1] == 1 && ids[2] == 2 && ids[3] == 3);
  CHECK_OK(ronde_shutdown());
  options.process_sets = bad;
  options.process_set_count = 1;
  CHECK(ronde_init(&options) == RONDE_E_USAGE);
  CHECK(!ronde_is_initialized());
}

/* A store that fails, in the ways a program's may. */
static int put_fails(void* context, const char* key, const char* value) {
  (void)context, (void)key, (void)value;
  return 42;
}

static int get_fails(void* context, const char* key, char* value, size_t capacity, size_t* length) {
  (void)context, (void)key, (void)value, (void)capacity, (void)length;
  return 43;
}

static int get_nothing(void* context, const char* key, char* value, size_t capacity,
                       size_t* length) {
  (void)context, (void)key, (void)value, (void)capacity, (void)length;
  return RONDE_KEY_ABSENT;
}

static int get_too_much(void* context, const char* key, char* value, size_t capacity,
                        size_t* length) {
  (void)context, (void)key, (void)value, (void)capacity;
  *length = SIZE_MAX;
  return 0;
}

static void stores_that_fail(void) {
  char folder[64];
  make_store(folder);
  setenv("RONDE_INIT_TIMEOUT_S", "0.2", 1);
  ronde_init_options options = store_options(folder, 0, 2);
  options.get = get_fails;
  CHECK_FAILS(RONDE_E_GROUP, "it returned 43", ronde_init(&options));
  options.get = get_too_much;
  CHECK_FAILS(RONDE_E_GROUP, "too long", ronde_init(&options));
  options.get = get_nothing;
  CHECK_FAILS(RONDE_E_GROUP, "rank(s) 1 of 2", ronde_init(&options));
  options.put = put_fails;
  CHECK_FAILS(RONDE_E_GROUP, "it returned 42", ronde_init(&options));
  remove_store(folder);
}

/* Starts again and again, each time with keys of its own; and values longer than what get() is
 * first given room for. */
static int get_piecemeal(void* context, const char* key, char* value, size_t capacity,
                         size_t* length) {
  const int code = store_get(context, key, value, capacity < 10 ? capacity : 10, length);
  if (code == 0 && *length > 10 && capacity < 8192) {
    *length = 8192 + *length; /* asks for more room than it needs */
    return 0;
  }
  return store_get(context, key, value, capacity, length);
}

static void start_twice(char* folder, int rank, int size) {
  for (int generation = 0; generation < 2; ++generation) {
    char prefix[32];
    double value = rank;
    ronde_work work = NULL;
    ronde_init_options options = store_options(folder, rank, size);
    snprintf(prefix, sizeof(prefix), "generation %d", generation);
    options.prefix = prefix;
    options.local_rank = -1;
    options.get = get_piecemeal;
    CHECK_OK(ronde_init(&options));
    CHECK_OK(start_one(&value, &work));
    CHECK_OK(ronde_work_wait(work, -1));
    CHECK(value == size * (size - 1) / 2.0);
    CHECK_OK(ronde_work_free(work));
    CHECK_OK(ronde_shutdown());
  }
}

static void a_start_after_the_end(void) {
  fork_ranks(2, start_twice);
}

static void forget_the_local_rank(char* folder, int rank, int size) {
  ronde_init_options options = store_options(folder, rank, size);
  options.local_rank = 0;
  CHECK_FAILS(RONDE_E_USAGE, "rank 1 was started with local rank 0", ronde_init(&options));
}

static void a_local_rank_has_no_default(void) {
  fork_ranks(2, forget_the_local_rank);
}

static void abort_as_one(char* folder, int rank, int size) {
  const ronde_init_options options = store_options(folder, rank, size);
  double value = 1;
  ronde_work work = NULL;
  ronde_work waiting = NULL;
  ronde_work group = NULL;
  ronde_work member = NULL;
  uint32_t set = 0;
  int ranks = 0;
  CHECK_OK(ronde_init(&options));
  /* By the end of the barrier it waits for rank 1, which never comes to it. */
  if (rank != 1) {
    CHECK_OK(start_sum("the others", &value, 1, RONDE_ALL_RANKS, &waiting));
  }
  barrier_of(RONDE_ALL_RANKS);
  if (rank == 1) {
    CHECK_OK(ronde_abort("the loss is not a number"));
  } else {
    CHECK_FAILS(RONDE_E_GROUP, "rank 1 aborted: the loss is not a number",
                ronde_work_wait(waiting, -1));
    CHECK(ronde_work_output(waiting, NULL, NULL, NULL, NULL) == RONDE_E_GROUP);
    CHECK_OK(ronde_work_free(waiting));
  }
  /* From here on everything says the same. Rank 1 itself may still get a work before it knows. */
  int status = start_one(&value, &work);
  if (status == RONDE_OK) status = finish(work);
  CHECK(status == RONDE_E_GROUP);
  CHECK_LAST_ERROR("rank 1 aborted");
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_OK(start_one(&value, &member));
  CHECK_FAILS(RONDE_E_GROUP, "rank 1 aborted", ronde_group_end(&group));
  CHECK_FAILS(RONDE_E_GROUP, "rank 1 aborted", ronde_work_wait(member, -1));
  CHECK_OK(ronde_work_free(member));
  CHECK(ronde_process_set_add(&rank, 1, &set) == RONDE_E_GROUP);
  CHECK_OK(ronde_size(RONDE_ALL_RANKS, &ranks));
  CHECK(ranks == size);
  CHECK_OK(ronde_shutdown());
}

static void a_dead_group(void) {
  fork_ranks(3, abort_as_one);
}

/* A name longer than the memory that the process may have. */
static void no_memory(void) {
  enum { kMiB = 1 << 20, kName = 256 * kMiB };
  double value = 2;
  ronde_work work = NULL;
  CHECK_OK(ronde_init(NULL));
  char* const name = malloc(kName + 1);
  CHECK(name != NULL);
  memset(name, 'x', kName);
  name[kName] = '\0';
  allow_memory(32 * kMiB);
  CHECK_FAILS(RONDE_E_OUT_OF_MEMORY, "out of memory",
              start_sum(name, &value, 1, RONDE_ALL_RANKS, &work));
  CHECK(work == NULL);
  CHECK_OK(start_one(&value, &work));
  CHECK_OK(finish(work));
  CHECK_OK(ronde_shutdown());
  free(name);
}

static const struct test_case kProcess[] = {
    {"everything else needs init", everything_else_needs_init, ""},
    {"versions and features", versions_and_features, ""},
    {"works outlive the group", works_outlive_the_group, ""},
    {"options of other versions", options_of_other_versions, ""},
    {"tensors of other versions", tensors_of_other_versions, ""},
    {"options that make no sense", options_that_make_no_sense, ""},
    {"sets at the start", sets_at_the_start, ""},
    {"stores that fail", stores_that_fail, ""},
    {"a start after the end", a_start_after_the_end, ""},
    {"a local rank has no default", a_local_rank_has_no_default, ""},
    {"a dead group", a_dead_group, ""},
    {"no memory", no_memory, ""},
    CASES_END,
};

static void run(const struct test_case* one) {
  one->body();
}

int main(int argc, char** argv) {
  static const struct suite suites[] = {{"process", kProcess}};
  setenv("RONDE_LOG_LEVEL", "off", 1);
  return run_suites(argc, argv, suites, 1, run, CHILD_EACH);
}
