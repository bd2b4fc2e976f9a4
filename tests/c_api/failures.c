/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong outside of Ronde: no memory, a store that hangs, a fork. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "store.h"

static void start(char* folder, int rank, int size) {
  const ronde_init_options options = store_options(folder, rank, size);
  CHECK_OK(ronde_init(&options));
}

/* The child has a copy of the parent's group, and must leave it alone. */
static void fork_in_a_group(char* folder, int rank, int size) {
  start(folder, rank, size);
  for (int shuts_down = 0; shuts_down < 2; ++shuts_down) {
    int status = -1;
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      alarm(60);
      if (shuts_down) CHECK_OK(ronde_shutdown());
      exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_job_goes_on();
  }
  CHECK_OK(ronde_shutdown());
}

static void children_of_fork(void) {
  fork_ranks(2, fork_in_a_group);
}

/* Blocks until the other end is closed. */
static int get_hangs(void* context, const char* key, char* value, size_t capacity, size_t* length) {
  char byte = 0;
  (void)key, (void)value, (void)capacity, (void)length;
  return read(*(int*)context, &byte, 1) == 0 ? 42 : 43;
}

static int put_nowhere(void* context, const char* key, const char* value) {
  (void)context, (void)key, (void)value;
  return 0;
}

static void a_store_that_hangs(void) {
  int ends[2] = {-1, -1};
  ronde_init_options options = {0};
  CHECK(pipe(ends) == 0);
  setenv("RONDE_INIT_TIMEOUT_S", "0.1", 1);
  options.struct_size = sizeof(options);
  options.rank = 1;
  options.size = 2;
  options.local_rank = -1;
  options.prefix = "job";
  options.context = &ends[0];
  options.put = put_nowhere;
  options.get = get_hangs;
  CHECK_FAILS(RONDE_E_GROUP,
              "rank 1 cannot start: get('job/0/0') of the key-value store has not returned for ",
              ronde_init(&options));
  CHECK(close(ends[1]) == 0);
}

/* The last rank may not have as much memory as the result takes; twice, as the second time is from
 * the cache. */
static void gather_without_memory(char* folder, int rank, int size) {
  enum { kMiB = 1 << 20, kBytes = 32 * kMiB };
  const int64_t shape[] = {kBytes};
  char* const part = malloc(kBytes);
  const ronde_tensor in = tensor_of(part, shape, 1, RONDE_U8);
  const ronde_operation_options options = named("large", RONDE_ALL_RANKS);
  start(folder, rank, size);
  CHECK(part != NULL);
  memset(part, rank, kBytes);
  if (rank == size - 1) allow_memory(kBytes);
  for (int repeat = 0; repeat < 2; ++repeat) {
    ronde_work work = NULL;
    void* data = NULL;
    CHECK_OK(ronde_allgather(&in, NULL, &options, &work));
    const int status = ronde_work_wait(work, -1);
    if (rank == size - 1) {
      CHECK(status == RONDE_E_OUT_OF_MEMORY);
      CHECK_LAST_ERROR(
          "allgather 'large': rank 1 has no memory for its result. The result is u8 [67108864], "
          "67108864 bytes");
      CHECK(ronde_work_output(work, &data, NULL, NULL, NULL) == RONDE_E_OUT_OF_MEMORY);
    } else {
      CHECK(status == RONDE_OK);
      CHECK_OK(ronde_work_output(work, &data, NULL, NULL, NULL));
      for (int from = 0; from < size; ++from) {
        const char* const of_rank = (const char*)data + (size_t)from * kBytes;
        CHECK(of_rank[0] == from && of_rank[kBytes - 1] == from);
      }
    }
    CHECK_OK(ronde_work_free(work));
    check_job_goes_on();
  }
  CHECK_OK(ronde_shutdown());
  free(part);
}

static void no_memory_for_a_result(void) {
  fork_ranks(2, gather_without_memory);
}

static const struct test_case kFailures[] = {
    {"children of fork leave the group alone", children_of_fork, ""},
    {"a store that hangs is named", a_store_that_hangs, ""},
    {"no memory for a result", no_memory_for_a_result, ""},
    CASES_END,
};

static void run(const struct test_case* one) {
  one->body();
}

int main(int argc, char** argv) {
  static const struct suite suites[] = {{"failures", kFailures}};
  setenv("RONDE_LOG_LEVEL", "off", 1);
  return run_suites(argc, argv, suites, 1, run, CHILD_EACH);
}
