/* SPDX-License-Identifier: Apache-2.0 */
/* Process sets. */
#include <pthread.h>

#include "rank.h"

static void a_set_numbers_its_ranks_by_its_own_order(void) {
  const int reversed[] = {2, 0};
  const int is_in = own_rank() != 1;
  uint32_t set = 0;
  int number = -1;
  int ranks[4] = {-1, -1, -1, -1};
  CHECK_OK(ronde_process_set_add(reversed, 2, &set));
  CHECK(set != RONDE_ALL_RANKS);
  CHECK_OK(ronde_process_set_included(set, &number));
  CHECK(number == is_in);
  CHECK_OK(ronde_size(set, &number));
  CHECK(number == 2);
  number = 4;
  CHECK_OK(ronde_process_set_ranks(set, ranks, &number));
  CHECK(number == 2 && ranks[0] == 2 && ranks[1] == 0 && ranks[2] == -1);
  if (is_in) {
    CHECK_OK(ronde_rank(set, &number));
    CHECK(number == (own_rank() == 2 ? 0 : 1));
    double value = own_rank();
    ronde_work work = NULL;
    CHECK_OK(start_broadcast(NULL, &value, 1, 0, set, &work));
    CHECK_OK(finish(work));
    CHECK(value == 2);
    const int64_t shape[] = {2};
    const int64_t splits[] = {2, 0};
    const double both[] = {1, 2};
    int64_t received[2] = {-1, -1};
    const ronde_tensor in = tensor_of(both, shape, 1, RONDE_F64);
    ronde_operation_options options = named(NULL, set);
    options.splits = splits;
    options.split_count = 2;
    CHECK_OK(ronde_alltoall(&in, NULL, &options, &work));
    CHECK_OK(ronde_work_wait(work, -1));
    CHECK_OK(ronde_work_splits(work, received));
    CHECK(received[0] == (own_rank() == 2 ? 2 : 0) && received[1] == received[0]);
    CHECK_OK(ronde_work_free(work));
  } else {
    double value = 0;
    ronde_work work = NULL;
    CHECK_FAILS(RONDE_E_NOT_A_MEMBER, "rank 1 is not in process set", ronde_rank(set, &number));
    CHECK_FAILS(RONDE_E_NOT_A_MEMBER, "rank 1 is not in process set",
                start_sum("outside", &value, 1, set, &work));
    CHECK(work == NULL);
  }
  CHECK_OK(ronde_process_set_remove(set));
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "process set", ronde_size(set, &number));
}

static void lists_fit_or_say_how_long_they_are(void) {
  int ranks[8];
  uint32_t ids[4] = {9, 9, 9, 9};
  uint32_t set = 0;
  int count = -5;
  set = add_set_of_all();
  CHECK_OK(ronde_process_set_ids(NULL, &count));
  CHECK(count == 2);
  count = 1;
  CHECK_FAILS(RONDE_E_TOO_SMALL, "room for 1 of 2", ronde_process_set_ids(ids, &count));
  CHECK(count == 2 && ids[0] == 9);
  count = 4;
  CHECK_OK(ronde_process_set_ids(ids, &count));
  CHECK(count == 2 && ids[0] == RONDE_ALL_RANKS && ids[1] == set && ids[2] == 9);
  count = 0;
  CHECK_FAILS(RONDE_E_TOO_SMALL, "room for 0", ronde_process_set_ranks(set, ranks, &count));
  CHECK(count == all_ranks());
  count = -1;
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "negative", ronde_process_set_ids(ids, &count));
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "count is NULL", ronde_process_set_ids(ids, NULL));
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "process set", ronde_process_set_ranks(77, NULL, &count));
  CHECK_OK(ronde_process_set_remove(set));
}

static const int kPair[] = {0, 1};

struct maker {
  const char* tag;
  double value;
  pthread_t thread;
};

static void* make_and_use(void* context) {
  struct maker* const maker = context;
  uint32_t set = 0;
  ronde_work work = NULL;
  CHECK_OK(ronde_process_set_create(kPair, 2, maker->tag, &set));
  CHECK_OK(start_sum(NULL, &maker->value, 1, set, &work));
  CHECK_OK(finish(work));
  CHECK_OK(ronde_process_set_remove(set));
  return NULL;
}

/* Threads that make them may overtake each other: the tag tells their sets apart. */
static void members_alone_make_a_set(void) {
  struct maker makers[] = {{"first", 1, 0}, {"second", 10, 0}, {NULL, 100, 0}};
  enum { kMakers = 3 };
  uint32_t set = 0;
  if (own_rank() > 1) {
    CHECK_FAILS(RONDE_E_NOT_A_MEMBER, "is not among the ranks 0,1",
                ronde_process_set_create(kPair, 2, NULL, &set));
    check_job_goes_on();
    return;
  }
  for (int i = 0; i < kMakers; ++i) {
    CHECK(pthread_create(&makers[i].thread, NULL, make_and_use, &makers[i]) == 0);
  }
  for (int i = 0; i < kMakers; ++i) CHECK(pthread_join(makers[i].thread, NULL) == 0);
  CHECK(makers[0].value == 2 && makers[1].value == 20 && makers[2].value == 200);
  check_job_goes_on();
}

static void what_cannot_be_a_set(void) {
  static const int twice[] = {0, 0};
  static const int far[] = {0, 99};
  uint32_t set = 5;
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "ranks is NULL", ronde_process_set_add(NULL, 1, &set));
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "negative", ronde_process_set_add(twice, -1, &set));
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "set is NULL", ronde_process_set_add(twice, 1, NULL));
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "set is NULL",
              ronde_process_set_create(twice, 1, NULL, NULL));
  CHECK(ronde_process_set_add(twice, 2, &set) == RONDE_E_USAGE);
  CHECK(ronde_process_set_add(far, 2, &set) == RONDE_E_USAGE);
  CHECK(ronde_process_set_add(NULL, 0, &set) == RONDE_E_USAGE);
  CHECK(ronde_process_set_create(far, 2, "", &set) == RONDE_E_USAGE);
  CHECK_FAILS(RONDE_E_USAGE, "cannot be removed", ronde_process_set_remove(RONDE_ALL_RANKS));
  CHECK(ronde_process_set_remove(77) == RONDE_E_UNKNOWN_SET);
  CHECK(set == 5);
  check_job_goes_on();
}

const struct test_case kSets[] = {
    {"a set numbers its ranks by its own order", a_set_numbers_its_ranks_by_its_own_order, "[n3]"},
    {"lists fit, or say how long they are", lists_fit_or_say_how_long_they_are, ""},
    {"members alone make a set", members_alone_make_a_set, "[n2][n3]"},
    {"what cannot be a set", what_cannot_be_a_set, ""},
    CASES_END,
};
