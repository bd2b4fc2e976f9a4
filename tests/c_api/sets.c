/* SPDX-License-Identifier: Apache-2.0 */
/* Process sets. */
#include "check.h"

#define SUITE "sets"

CASE_ON(3, members_and_others) {
  const int reversed[] = {2, 0};
  const int is_in = own_rank() != 1;
  double value = own_rank();
  uint32_t set = 0;
  uint32_t created = 0;
  int number = -1;
  int ranks[4] = {-1, -1, -1, -1};
  ronde_work work = NULL;
  CHECK_OK(ronde_process_set_add(reversed, 2, &set));
  CHECK_OK(ronde_process_set_included(set, &number));
  CHECK(set != RONDE_ALL_RANKS && number == is_in);
  number = 4;
  CHECK_OK(ronde_process_set_ranks(set, ranks, &number));
  CHECK(number == 2 && ranks[0] == 2 && ranks[1] == 0 && ranks[2] == -1);
  if (is_in) {
    CHECK(rank_in(set) == (own_rank() == 2 ? 0 : 1));
    CHECK_RUN(start_broadcast(NULL, &value, 1, 0, set, &work), work);
    CHECK(value == 2);
    CHECK_OK(ronde_process_set_create(reversed, 2, "tag", &created));
    CHECK(created != set && sum_in(created, 1) == 2);
    CHECK_OK(ronde_process_set_remove(created));
  } else {
    CHECK_FAILS(RONDE_E_NOT_A_MEMBER, "rank 1 is not in process set", ronde_rank(set, &number));
    CHECK(start_sum("outside", &value, 1, set, &work) == RONDE_E_NOT_A_MEMBER && work == NULL);
    CHECK_FAILS(RONDE_E_NOT_A_MEMBER, "this rank is not in process set", ronde_group_begin(set));
    CHECK_FAILS(RONDE_E_NOT_A_MEMBER, "is not among the ranks",
                ronde_process_set_create(reversed, 2, NULL, &created));
  }
  CHECK_OK(ronde_process_set_remove(set));
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "process set", ronde_size(set, &number));
}

CASE(lists_and_their_lengths) {
  int ranks[8];
  uint32_t ids[4] = {9, 9, 9, 9};
  const uint32_t set = add_set_of_all();
  int count = -5;
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
  CHECK_INVALID("negative", ronde_process_set_ids(ids, &count));
  CHECK_INVALID("count is NULL", ronde_process_set_ids(ids, NULL));
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "process set", ronde_process_set_ranks(77, NULL, &count));
  CHECK_OK(ronde_process_set_remove(set));
}
