/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RONDE_TESTS_C_API_CHECK_H
#define RONDE_TESTS_C_API_CHECK_H

/* Checks, cases and ranks of the plain C tests. A check that fails ends the process. */

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
#define CHECK_INVALID(part, call) CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, part, call)
/* `start` succeeds and gives `work`, which ends well. */
#define CHECK_RUN(start, work) \
  do {                         \
    CHECK_OK(start);           \
    CHECK_OK(finish(work));    \
  } while (0)

/* A case of the suite SUITE, which runs on each rank of groups of `least_ranks` to 3; 0: in a
 * process of its own, which no launcher started. */
struct test_case {
  const char* suite;
  const char* name;
  void (*body)(void);
  int least_ranks;
  struct test_case* next;
};
void add_case(struct test_case* one);

#define CASE(body) CASE_ON(1, body)
#define CASE_ALONE(body) CASE_ON(0, body)
#define CASE_ON(least_ranks, body)                                           \
  static void body(void);                                                    \
  __attribute__((constructor)) static void add_##body(void) {                \
    static struct test_case one = {SUITE, #body, body, (least_ranks), NULL}; \
    add_case(&one);                                                          \
  }                                                                          \
  static void body(void)

enum { kSet = RONDE_ALL_RANKS };

typedef int (*start_fn)(const ronde_tensor* in, ronde_tensor* out,
                        const ronde_operation_options* options, ronde_work* work);

/* The functions that give a number of this rank. */
enum { kNumberCount = 5 };
extern int (*const kNumbers[kNumberCount])(int*);

/* A key-value store in a folder, whose path is the context, for ranks that no launcher started. */
int store_put(void* folder, const char* key, const char* value);
int store_get(void* folder, const char* key, char* value, size_t capacity, size_t* length);
/* The options of a rank that meets others there. */
ronde_init_options store_options(char* folder, int rank, int size);

/* A tensor on the CPU. `shape` must live as long as the tensor. */
static inline ronde_tensor tensor_of(const void* data, const int64_t* shape, int dims, int dtype) {
  ronde_tensor tensor = RONDE_TENSOR_INIT;
  tensor.data = (void*)data;
  tensor.shape = shape;
  tensor.dims = dims;
  tensor.dtype = dtype;
  return tensor;
}

/* Memory for a result of up to `capacity` elements. */
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

static inline int rank_in(uint32_t set) {
  int rank = -1;
  CHECK_OK(ronde_rank(set, &rank));
  return rank;
}

static inline int own_rank(void) {
  return rank_in(RONDE_ALL_RANKS);
}

static inline int all_ranks(void) {
  int size = -1;
  CHECK_OK(ronde_size(RONDE_ALL_RANKS, &size));
  return size;
}

/* All sums have the same name. */
static inline double sum_in(uint32_t set, double value) {
  ronde_work work = NULL;
  CHECK_RUN(start_sum("sum", &value, 1, set, &work), work);
  return value;
}

static inline void barrier_of(uint32_t set) {
  ronde_work work = NULL;
  const ronde_operation_options options = named(NULL, set);
  CHECK_RUN(ronde_barrier(&options, &work), work);
}

/* Another set of all ranks, in the same order. */
static inline uint32_t add_set_of_all(void) {
  static const int kRanks[] = {0, 1, 2};
  uint32_t set = 0;
  CHECK_OK(ronde_process_set_add(kRanks, all_ranks(), &set));
  return set;
}

/* The job continues after an error. */
static inline void check_job_continues(void) {
  CHECK(sum_in(RONDE_ALL_RANKS, own_rank() + 1) == all_ranks() * (all_ranks() + 1) / 2.0);
}

#endif
