/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that run out of data at different times. */
#include "rank.h"

static ronde_work start_join(uint32_t set) {
  ronde_work work = NULL;
  CHECK_OK(ronde_join(set, &work));
  return work;
}

static void uneven_data(void) {
  const int size = all_ranks();
  for (int epoch = 0; epoch < 2; ++epoch) {
    /* Rank r has 3 + r batches. */
    for (int step = 0; step < 3 + own_rank(); ++step) {
      const int first = step < 3 ? 0 : step - 2; /* the ranks before it have joined */
      double value = own_rank();
      double average = own_rank();
      ronde_work work = NULL;
      CHECK_OK(start_sum("sum", &value, 1, RONDE_ALL_RANKS, &work));
      CHECK_OK(finish(work));
      CHECK_OK(ronde_allreduce("average", &average, &average, 1, RONDE_F64, RONDE_AVERAGE, 1, 1,
                               RONDE_CPU, NULL, RONDE_ALL_RANKS, &work));
      CHECK_OK(finish(work));
      const double expected = size * (size - 1) / 2.0 - first * (first - 1) / 2.0;
      CHECK(value == expected && average == expected / (size - first));
    }
    int last = -1;
    const ronde_work work = start_join(RONDE_ALL_RANKS);
    CHECK_OK(ronde_work_wait(work, -1));
    CHECK_OK(ronde_work_last_rank(work, &last));
    CHECK(last == size - 1);
    CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "no result",
                ronde_work_output(work, NULL, NULL, NULL, NULL));
    CHECK_OK(ronde_work_free(work));
    check_job_goes_on();
  }
}

/* A set of its own, so that the ranks can still meet. */
static void after_the_join(void) {
  int last = -1;
  double value = 1;
  ronde_work refused = NULL;
  ronde_work joined = NULL;
  const uint32_t set = add_set_of_all();
  if (own_rank() == 0) {
    joined = start_join(set);
    CHECK_FAILS(RONDE_E_PENDING, "ronde_work_wait()", ronde_work_last_rank(joined, &last));
    CHECK_FAILS(RONDE_E_USAGE, "this rank has joined", ronde_join(set, &refused));
    CHECK_FAILS(RONDE_E_USAGE, "this rank has joined", start_sum("x", &value, 1, set, &refused));
    CHECK(refused == NULL);
  }
  barrier_of(RONDE_ALL_RANKS);
  if (own_rank() != 0) {
    CHECK_OK(ronde_broadcast("x", &value, 1, RONDE_F64, 0, RONDE_CPU, NULL, set, &refused));
    CHECK_FAILS(RONDE_E_USAGE, "needs every rank, but rank 0 has joined", finish(refused));
    joined = start_join(set);
  }
  CHECK_OK(ronde_work_wait(joined, -1));
  CHECK_OK(ronde_work_last_rank(joined, &last));
  CHECK(last != 0);
  CHECK_OK(ronde_work_free(joined));
  CHECK_OK(ronde_process_set_remove(set));
  check_job_goes_on();
}

const struct test_case kJoin[] = {
    {"uneven data", uneven_data, ""},
    {"after the join", after_the_join, "[n2][n3]"},
    CASES_END,
};
