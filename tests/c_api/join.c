/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks without more data. */
#include "rank.h"

static ronde_work start_join(uint32_t set) {
  ronde_work work = NULL;
  CHECK_OK(ronde_join(set, &work));
  return work;
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
    CHECK_OK(start_broadcast("x", &value, 1, 0, set, &refused));
    CHECK_FAILS(RONDE_E_USAGE, "needs every rank, but rank 0 has joined", finish(refused));
    joined = start_join(set);
  }
  CHECK_OK(ronde_work_wait(joined, -1));
  CHECK_OK(ronde_work_last_rank(joined, &last));
  CHECK(last != 0);
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "no result",
              ronde_work_output(joined, NULL, NULL, NULL, NULL));
  CHECK_OK(ronde_work_free(joined));
  CHECK_OK(ronde_process_set_remove(set));
  check_job_goes_on();
}

const struct test_case kJoin[] = {
    {"after the join", after_the_join, "[n2][n3]"},
    CASES_END,
};
