/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RONDE_TESTS_C_API_CHECK_H
#define RONDE_TESTS_C_API_CHECK_H

/* Checks and cases of the plain C tests. A check that fails ends the process. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ronde/ronde_c.h"

void fail_check(const char* what, const char* file, int line);

#define CHECK(condition) ((condition) ? (void)0 : fail_check(#condition, __FILE__, __LINE__))
#define CHECK_OK(call) CHECK((call) == RONDE_OK)
/* The call fails with this code, and its text contains `part`. */
#define CHECK_FAILS(code, part, call) \
  do {                                \
    CHECK((call) == (code));          \
    CHECK_LAST_ERROR(part);           \
  } while (0)
#define CHECK_LAST_ERROR(part) CHECK(strstr(ronde_last_error(), (part)) != NULL)

/* What this process writes to stderr from the one call to the other. The text stays until the next
 * begin_capture(). A check that fails meanwhile is still seen. */
void begin_capture(void);
const char* end_capture(void);

/* From now on the process may have so much more memory than it has. */
void allow_memory(size_t more_bytes);

struct test_case {
  const char* name;
  void (*body)(void);
  /* "[n2][n3]": with so many ranks only; "": with any number. "[own]": in a process of its own. */
  const char* tags;
};

#define CASES_END \
  { NULL, NULL, NULL }

struct suite {
  const char* name;
  const struct test_case* cases; /* up to CASES_END */
};

/* What the cases of a suite share when all are run: a process in which the first failure is the
 * last one, or nothing, as each is a child of its own. */
enum sharing { ONE_PROCESS, CHILD_EACH };

/* The arguments are those of the Catch2 programs: `--ronde-list` lists the cases for ctest, a line
 * of suite, name, name and tags each. `--ronde-run SUITE` runs those of a suite that need no
 * process of their own and suit RONDE_TEST_RANKS, and says how to run a failed one alone. A name
 * runs that case. `run` gets RONDE_TEST_DEADLINE_S for each. */
int run_suites(int argc, char** argv, const struct suite* suites, size_t count,
               void (*run)(const struct test_case* one), enum sharing sharing);

/* What cases share. */

/* On the CPU. `shape` is needed as long as the tensor. */
static inline ronde_tensor tensor_of(const void* data, const int64_t* shape, int dims, int dtype) {
  ronde_tensor tensor = RONDE_TENSOR_INIT;
  tensor.data = (void*)data;
  tensor.shape = shape;
  tensor.dims = dims;
  tensor.dtype = dtype;
  return tensor;
}

/* Memory for results of so many elements, whatever their shape. */
static inline ronde_tensor room_for(void* data, int64_t capacity, int dtype) {
  ronde_tensor tensor = tensor_of(data, NULL, 0, dtype);
  tensor.capacity = capacity;
  return tensor;
}

static inline ronde_operation_options named(const char* name, uint32_t set) {
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  options.name = name;
  options.process_set = set;
  return options;
}

/* In place, of what most cases do not care about. */

static inline int start_sum(const char* name, double* values, int64_t count, uint32_t set,
                            ronde_work* work) {
  ronde_tensor tensor = tensor_of(values, &count, 1, RONDE_F64);
  const ronde_operation_options options = named(name, set);
  return ronde_allreduce(&tensor, &tensor, &options, work);
}

static inline int start_broadcast(const char* name, double* values, int64_t count, int root,
                                  uint32_t set, ronde_work* work) {
  ronde_tensor tensor = tensor_of(values, &count, 1, RONDE_F64);
  ronde_operation_options options = named(name, set);
  options.root = root;
  return ronde_broadcast(NULL, &tensor, &options, work);
}

/* The work owns the result. */
static inline int start_gather(const char* name, const double* rows, int64_t count, uint32_t set,
                               ronde_work* work) {
  const ronde_tensor tensor = tensor_of(rows, &count, 1, RONDE_F64);
  const ronde_operation_options options = named(name, set);
  return ronde_allgather(&tensor, NULL, &options, work);
}

/* Waits and frees. */
static inline int finish(ronde_work work) {
  const int status = ronde_work_wait(work, -1);
  CHECK_OK(ronde_work_free(work));
  return status;
}

static inline int own_rank(void) {
  int rank = -1;
  CHECK_OK(ronde_rank(RONDE_ALL_RANKS, &rank));
  return rank;
}

static inline int all_ranks(void) {
  int size = -1;
  CHECK_OK(ronde_size(RONDE_ALL_RANKS, &size));
  return size;
}

static inline void barrier_of(uint32_t set) {
  ronde_work work = NULL;
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  options.process_set = set;
  CHECK_OK(ronde_barrier(&options, &work));
  CHECK_OK(finish(work));
}

/* Another set of all ranks. */
static inline uint32_t add_set_of_all(void) {
  int ranks[8];
  uint32_t set = 0;
  for (int i = 0; i < all_ranks(); ++i) ranks[i] = i;
  CHECK_OK(ronde_process_set_add(ranks, all_ranks(), &set));
  return set;
}

/* After an error: the job goes on. */
static inline void check_job_goes_on(void) {
  double value = own_rank() + 1;
  ronde_work work = NULL;
  CHECK_OK(start_sum("the job goes on", &value, 1, RONDE_ALL_RANKS, &work));
  CHECK_OK(finish(work));
  CHECK(value == all_ranks() * (all_ranks() + 1) / 2.0);
}

#endif
