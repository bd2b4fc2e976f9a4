/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RONDE_TESTS_C_API_RANK_H
#define RONDE_TESTS_C_API_RANK_H

/* What the cases that run on every rank of a group share. */

#include "check.h"

extern const struct test_case kCollectives[];
extern const struct test_case kBadInput[];
extern const struct test_case kGroups[];
extern const struct test_case kJoin[];
extern const struct test_case kSets[];
extern const struct test_case kThreads[];
extern const struct test_case kWorks[];

#define RANK_SUITES                                                                                \
  {                                                                                                \
    {"collectives", kCollectives}, {"bad_input", kBadInput}, {"groups", kGroups}, {"join", kJoin}, \
        {"sets", kSets}, {"threads", kThreads}, {"works", kWorks},                                 \
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

/* Waits and frees. */
static inline int finish(ronde_work work) {
  const int status = ronde_work_wait(work, -1);
  CHECK_OK(ronde_work_free(work));
  return status;
}

/* An allreduce of doubles with what most cases do not care about. */
static inline int start_sum(const char* name, double* values, int64_t count, uint32_t set,
                            ronde_work* work) {
  return ronde_allreduce(name, values, values, count, RONDE_F64, RONDE_SUM, 1, 1, RONDE_CPU, NULL,
                         set, work);
}

static inline void barrier_of(uint32_t set) {
  ronde_work work = NULL;
  CHECK_OK(ronde_barrier(set, &work));
  CHECK_OK(finish(work));
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
