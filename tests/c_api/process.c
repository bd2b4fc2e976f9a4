/* SPDX-License-Identifier: Apache-2.0 */
/* The start and the end, what works without a group, and failures outside of Ronde: no memory, a
 * store that hangs, a fork. */
#include <math.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define SUITE "process"

/* Every function that needs the group. */
static void expect_not_initialized(void) {
#define NEEDS_INIT(call) \
  CHECK_FAILS(RONDE_E_NOT_INITIALIZED, "call it after ronde_init() and before", call)
  static const start_fn kOperations[] = {ronde_allreduce, ronde_broadcast,     ronde_allgather,
                                         ronde_alltoall,  ronde_reducescatter, ronde_reduce};
  double value = 1;
  ronde_tensor tensor = tensor_of(&value, NULL, 0, RONDE_F64);
  char text[8];
  int number = 0;
  uint32_t set = 0;
  ronde_work none = NULL;
  for (int i = 0; i < kNumberCount; ++i) NEEDS_INIT(kNumbers[i](&number));
  for (int i = 0; i < 6; ++i) NEEDS_INIT(kOperations[i](&tensor, &tensor, NULL, &none));
  NEEDS_INIT(ronde_rank(kSet, &number));
  NEEDS_INIT(ronde_size(kSet, &number));
  NEEDS_INIT(ronde_process_set_add(&number, 1, &set));
  NEEDS_INIT(ronde_process_set_create(&number, 1, NULL, &set));
  NEEDS_INIT(ronde_process_set_remove(1));
  NEEDS_INIT(ronde_process_set_ids(NULL, &number));
  NEEDS_INIT(ronde_process_set_ranks(kSet, NULL, &number));
  NEEDS_INIT(ronde_process_set_included(kSet, &number));
  NEEDS_INIT(ronde_send(&tensor, NULL, NULL, &none));
  NEEDS_INIT(ronde_recv(NULL, &tensor, NULL, &none));
  NEEDS_INIT(ronde_barrier(NULL, &none));
  NEEDS_INIT(ronde_join(kSet, &none));
  NEEDS_INIT(ronde_group_begin(kSet));
  CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_cancel());
  NEEDS_INIT(ronde_abort("x"));
  NEEDS_INIT(ronde_stats_json(text, sizeof(text)));
  CHECK(none == NULL && ronde_is_initialized() == 0);
  CHECK_OK(ronde_shutdown()); /* nothing to leave */
}

/* Works outlive the group. */
CASE_ALONE(everything_else_needs_init) {
  double value = 3;
  double gathered = 3; /* of its own: the sum may still write the other */
  ronde_work work = NULL;
  ronde_work owner = NULL;
  void* data = NULL;
  CHECK(ronde_last_error()[0] == '\0');
  expect_not_initialized();
  CHECK_OK(ronde_init(NULL));
  CHECK_OK(start_sum("sum", &value, 1, kSet, &work));
  CHECK_OK(start_gather("gather", &gathered, 1, kSet, &owner));
  CHECK_OK(ronde_shutdown());
  CHECK_OK(finish(work));
  CHECK_OK(ronde_work_output(owner, &data, NULL, NULL, NULL));
  CHECK(*(double*)data == 3);
  CHECK_OK(ronde_work_free(owner));
  expect_not_initialized();
}

CASE_ALONE(versions_and_features) {
  static const char* const kYes[] = {"shm",  "key_value", "process_sets", "send_recv", "groups",
                                     "join", "streams",   "timeline",     "worlds"};
  for (size_t i = 0; i < sizeof(kYes) / sizeof(kYes[0]); ++i) {
    CHECK(ronde_has(kYes[i]) == 1 && ronde_feature_version(kYes[i]) == 1);
  }
  CHECK(ronde_has("quantum") == 0 && ronde_has("") == 0);
  CHECK(ronde_has(NULL) == 0 && ronde_feature_version(NULL) == 0);
  CHECK((ronde_feature_version("nccl") >= 20000) == ronde_has("nccl"));
  CHECK(ronde_has("mpi") == ronde_has("mpi_communicator"));
  CHECK(strcmp(ronde_version(), RONDE_TEST_VERSION) == 0);
}

/* tests/python/elastic_test.py has the jobs of `ronde run --elastic`. */
CASE_ALONE(a_job_that_is_not_elastic) {
  int number = 7, slot = 7, count = 0;
  CHECK(ronde_is_elastic() == 0 && ronde_job_goes_on() == 0);
  CHECK_INVALID("min_ranks", ronde_reform(0, &number, &slot, NULL, &count));
  CHECK_INVALID("number or slot is NULL", ronde_reform(1, NULL, &slot, NULL, &count));
  CHECK_INVALID("count is NULL", ronde_reform(1, &number, &slot, NULL, NULL));
  CHECK_OK(ronde_init(NULL));
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_INVALID("why is NULL", ronde_fail_job(NULL));
  CHECK_FAILS(RONDE_E_USAGE, "`ronde run --elastic` has not started", ronde_fail_job("lost"));
  CHECK_FAILS(RONDE_E_USAGE, "`ronde run --elastic` has not started",
              ronde_reform(1, &number, &slot, NULL, &count));
  CHECK(number == 7 && slot == 7 && ronde_is_initialized());
  CHECK_OK(ronde_group_cancel());
  CHECK_OK(ronde_shutdown());
}

/* Structs of a program that was compiled with another header. The fields after the end of an older
 * struct have their defaults. */
CASE_ALONE(options_of_other_versions) {
  static const int self[] = {0};
  static const ronde_rank_list lists[] = {{self, 1}, {self, 1}};
  ronde_init_options options = {.process_sets = lists, .process_set_count = 2};
  int count = -1;
  CHECK_INVALID("struct_size", ronde_init(&options));
  options.struct_size = offsetof(ronde_init_options, rank);
  options.rank = -7;
  options.put = store_put;
  CHECK_OK(ronde_init(&options));
  CHECK_OK(ronde_process_set_ids(NULL, &count));
  CHECK(count == 3);
  CHECK_OK(ronde_shutdown());
}

CASE_ALONE(tensors_of_other_versions) {
  struct newer {
    ronde_tensor known;
    void* more;
  } newer = {RONDE_TENSOR_INIT, NULL};
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  float value = 2;
  ronde_work work = NULL;
  CHECK_OK(ronde_init(NULL));
  newer.known.struct_size = sizeof(newer);
  newer.known.data = &value;
  newer.known.dtype = RONDE_F32;
  options.prescale = 3;
  CHECK_RUN(ronde_allreduce(&newer.known, &newer.known, &options, &work), work);
  CHECK(value == 6);
  newer.more = &newer;
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "a ronde_tensor has fields that this version",
              ronde_allreduce(&newer.known, &newer.known, NULL, &work));
  newer.known.struct_size = offsetof(ronde_tensor, stream);
  newer.known.stream = &value;
  newer.known.capacity = 0;
  options.struct_size = offsetof(ronde_operation_options, postscale);
  options.postscale = NAN;
  options.process_set = 77;
  CHECK_RUN(ronde_allreduce(&newer.known, &newer.known, &options, &work), work);
  CHECK(value == 18);
  CHECK_OK(ronde_shutdown());
}

CASE_ALONE(options_that_make_no_sense) {
  static const int zero = 0, minus = -4;
  const ronde_rank_list lists[] = {{NULL, 2}, {&zero, -2}, {&zero, 0}, {&minus, 1}};
#define OPTIONS(...) (&(ronde_init_options){.struct_size = sizeof(ronde_init_options), __VA_ARGS__})
#define INVALID(part, ...) CHECK_INVALID(part, ronde_init(OPTIONS(__VA_ARGS__)))
  INVALID("process_sets is NULL", .process_set_count = 1);
  INVALID("process_set_count is negative", .process_sets = lists, .process_set_count = -1);
  INVALID("ranks is NULL", .process_sets = &lists[0], .process_set_count = 1);
  INVALID("count is negative", .process_sets = &lists[1], .process_set_count = 1);
  INVALID("ranks is NULL", .mpi_ranks = {NULL, 3});
  INVALID("size is negative", .size = -1);
  INVALID("but no size", .put = store_put);
  INVALID("but no size", .rank = 2);
  INVALID("but no size", .local_rank = 2);
  for (int i = 2; i < 4; ++i) {
    CHECK_FAILS(RONDE_E_USAGE, "a process set that is empty or has a negative rank",
                ronde_init(OPTIONS(.size = 1, .process_sets = &lists[i], .process_set_count = 1)));
  }
  CHECK(ronde_init(OPTIONS(.size = 1, .mpi_comm = &zero)) ==
        (ronde_has("mpi_communicator") ? RONDE_E_USAGE : RONDE_E_UNSUPPORTED));
  CHECK(!ronde_is_initialized());
}

/* Asks for more memory than it needs. */
static int get_greedily(void* folder, const char* key, char* value, size_t capacity,
                        size_t* length) {
  const int code = store_get(folder, key, value, capacity, length);
  if (code == 0 && capacity < 8192) *length += 8192;
  return code;
}

CASE_ON(2, a_start_after_the_end) {
  ronde_init_options options = store_options(getenv("TEST_STORE"), own_rank(), all_ranks());
  options.get = get_greedily;
  options.prefix = "second";
  options.local_rank = -1;
  CHECK_OK(ronde_shutdown());
  CHECK_OK(ronde_init(&options));
  check_job_continues();
  CHECK_OK(ronde_shutdown());
  options.prefix = "third";
  options.local_rank = 0;
  CHECK_FAILS(RONDE_E_USAGE, "rank 1 was started with local rank 0", ronde_init(&options));
}

CASE_ON(2, a_dead_group) {
  const int rank = own_rank();
  double value = 1;
  ronde_work work = NULL;
  int failed = 7;
  CHECK_OK(ronde_failed_rank(kSet, &failed));
  CHECK(failed == -1);
  barrier_of(kSet);
  if (rank == 1) CHECK_OK(ronde_abort("the loss is not a number"));
  /* Every rank may still get a work before it knows. */
  int status = start_sum(rank == 1 ? "alone" : "without rank 1", &value, 1, kSet, &work);
  if (status == RONDE_OK) {
    status = ronde_work_wait(work, -1);
    CHECK(ronde_work_output(work, NULL, NULL, NULL, NULL) == status);
    CHECK_OK(ronde_work_free(work));
  }
  CHECK_FAILS(RONDE_E_GROUP, "rank 1 aborted: the loss is not a number", status);
  CHECK_FAILS(RONDE_E_GROUP, "rank 1 aborted", ronde_failed_rank(kSet, &failed));
  CHECK(failed == 1);
}

static void note_stall(void* context, const ronde_stall* stall) {
  const int is_meant = stall->struct_size == sizeof(*stall) && strcmp(stall->name, "late") == 0 &&
                       strcmp(stall->text, "allreduce 'late'") == 0 && stall->waiting_s > 0 &&
                       stall->submitted.count == all_ranks() - 1 && stall->missing.count == 1 &&
                       stall->submitted.ranks[0] == 0 && stall->missing.ranks[0] == 1;
  if (is_meant) atomic_store((atomic_int*)context, 1);
}

/* The others are told that they wait for rank 1, and then do not wait for it in shutdown. */
CASE_ON(2, a_rank_that_is_late) {
  const struct timespec pause = {0, 1000 * 1000};
  const int rank = own_rank();
  static atomic_int is_reported;
  ronde_init_options options = store_options(getenv("TEST_STORE"), rank, all_ranks());
  ronde_work work = NULL;
  double value = 1;
  int failed = 7;
  CHECK_FAILS(RONDE_E_USAGE, "after ronde::init()", ronde_set_stall_callback(note_stall, NULL));
  CHECK_INVALID("seconds", ronde_shutdown_within(NAN));
  CHECK_OK(ronde_shutdown_within(1e300));
  CHECK_OK(ronde_set_stall_callback(note_stall, &is_reported));
  setenv("RONDE_STALL_WARN_S", "0.05", 1);
  setenv("RONDE_LOG_LEVEL", "off", 1);
  options.prefix = "late";
  CHECK_OK(ronde_init(&options));
  if (rank != 1) CHECK_OK(start_sum("late", &value, 1, kSet, &work));
  while (atomic_load(&is_reported) == 0) nanosleep(&pause, NULL);
  if (rank == 1) CHECK_OK(start_sum("late", &value, 1, kSet, &work));
  CHECK_OK(finish(work));
  if (rank != 1) {
    CHECK_FAILS(RONDE_E_GROUP, "did not call shutdown() within the", ronde_shutdown_within(0.5));
  } else {
    while (ronde_failed_rank(kSet, &failed) == RONDE_OK) nanosleep(&pause, NULL);
    CHECK(failed >= 0 && ronde_shutdown() == RONDE_E_GROUP);
  }
}

#undef SUITE
#define SUITE "failures"

/* A store that fails, or whose get() never returns. */
enum { kHangs = -1 };
struct bad_store {
  int put_code;
  int get_code;
  size_t length;
  const char* part;
};

static int bad_put(void* store, const char* key, const char* value) {
  (void)key, (void)value;
  return ((const struct bad_store*)store)->put_code;
}

static int bad_get(void* context, const char* key, char* value, size_t capacity, size_t* length) {
  const struct bad_store* const store = context;
  (void)key, (void)value, (void)capacity;
  while (store->get_code == kHangs) pause();
  *length = store->length;
  return store->get_code;
}

CASE_ALONE(stores_that_fail) {
  static struct bad_store stores[] = {
      {42, RONDE_KEY_ABSENT, 0, "it returned 42"},
      {0, 43, 0, "it returned 43"},
      {0, 0, SIZE_MAX, "too long"},
      {0, kHangs, 0, "rank 1 cannot start: get('job/0/0') of the key-value store has not returned"},
  };
  setenv("RONDE_INIT_TIMEOUT_S", "0.2", 1);
  for (size_t i = 0; i < sizeof(stores) / sizeof(stores[0]); ++i) {
    ronde_init_options options = store_options(NULL, 1, 2);
    options.put = bad_put;
    options.get = bad_get;
    options.context = &stores[i];
    options.prefix = "job";
    CHECK_FAILS(RONDE_E_GROUP, stores[i].part, ronde_init(&options));
  }
}

/* Limits the memory of this process to what it has and `more_bytes`. */
static void allow_memory(size_t more_bytes) {
  FILE* const statm = fopen("/proc/self/statm", "r");
  struct rlimit limit;
  long pages = 0;
  CHECK(statm != NULL && fscanf(statm, "%ld", &pages) == 1 && fclose(statm) == 0);
  CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
  limit.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (rlim_t)more_bytes;
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

/* A name and a result that are larger than the memory that the process may have. */
CASE_ALONE(no_memory) {
  enum { kMiB = 1 << 20, kBytes = 256 * kMiB };
  const int64_t shape[] = {kBytes};
  const ronde_operation_options options = named("large", kSet);
  ronde_work work = NULL;
  double value = 2;
  CHECK_OK(ronde_init(NULL));
  char* const name = malloc(kBytes + 1);
  CHECK(name != NULL);
  memset(name, 'x', kBytes);
  name[kBytes] = '\0';
  allow_memory(32 * kMiB);
  CHECK_FAILS(RONDE_E_OUT_OF_MEMORY, "out of memory", start_sum(name, &value, 1, kSet, &work));
  CHECK(work == NULL);
  const ronde_tensor in = tensor_of(name, shape, 1, RONDE_U8);
  CHECK_OK(ronde_allgather(&in, NULL, &options, &work));
  CHECK_FAILS(RONDE_E_OUT_OF_MEMORY, "'large': rank 0 has no memory for its result. The result is",
              ronde_work_wait(work, -1));
  CHECK(ronde_work_output(work, NULL, NULL, NULL, NULL) == RONDE_E_OUT_OF_MEMORY);
  CHECK_OK(ronde_work_free(work));
  check_job_continues();
  CHECK_OK(ronde_shutdown());
  free(name);
}

/* The child has a copy of the parent's group, which it can neither use nor end. */
CASE_ON(2, children_of_fork) {
  ronde_work work = NULL;
  ronde_queue queue = NULL;
  int status = -1;
  CHECK_OK(ronde_barrier(NULL, &work));
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(60);
    CHECK_FAILS(RONDE_E_USAGE, "in a child of fork()", ronde_work_wait(work, -1));
    CHECK_FAILS(RONDE_E_USAGE, "in a child of fork()", ronde_queue_make(&queue));
    CHECK_OK(ronde_shutdown());
    exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK_OK(finish(work));
}
