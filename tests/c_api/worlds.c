/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds that ranks of the group make. */
#include "rank.h"

enum { kSet = RONDE_ALL_RANKS };
static const uint32_t kUnknown = (UINT32_C(1) << 31) + 12345;
static const int kFirst[] = {0};

static const int* reversed(int count) {
  static int ranks[8];
  for (int i = 0; i < count; ++i) ranks[i] = count - 1 - i;
  return ranks;
}

static uint32_t make_reversed(const char* name) {
  uint32_t world = 0;
  CHECK_OK(ronde_world_make_within(name, kSet, reversed(all_ranks()), all_ranks(), &world));
  return world;
}

/* All sums have the same name. */
static double sum_in(uint32_t set, double value) {
  ronde_work work = NULL;
  CHECK_OK(start_sum("sum", &value, 1, set, &work));
  CHECK_OK(finish(work));
  return value;
}

static int rank_in(uint32_t set) {
  int rank = -1;
  CHECK_OK(ronde_rank(set, &rank));
  return rank;
}

static void check_no_world_is(uint32_t number) {
  uint32_t set = 0;
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "there is no world", ronde_world_shutdown(number));
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "there is no world", ronde_world_abort(number, "text"));
  CHECK(ronde_world_process_set_add(number, kFirst, 1, &set) == RONDE_E_UNKNOWN_SET);
  CHECK(ronde_world_process_set_create(number, kFirst, 1, NULL, &set) == RONDE_E_UNKNOWN_SET);
}

static void all_ranks_reversed_are_a_world(void) {
  const int size = all_ranks();
  const uint32_t world = make_reversed("reversed");
  int ranks[8];
  int number = 8;
  int local[2];
  CHECK(ronde_has("worlds") == 1);
  CHECK(world >> 31 == 1 && rank_in(world) == size - 1 - own_rank());
  CHECK_OK(ronde_process_set_ranks(world, ranks, &number));
  CHECK(number == size && ranks[0] == 0 && ranks[size - 1] == size - 1);
  CHECK_OK(ronde_process_set_included(world, &number));
  CHECK(number == 1);
  CHECK_OK(ronde_size(world, &number));
  CHECK_OK(ronde_world_local(world, &local[0], &local[1]));
  CHECK(number == size && local[0] == rank_in(world) && local[1] == size);
  /* A sum of the same name in the group waits for rank 0 until the world's sums are done. */
  double value = 1;
  int done = 0;
  ronde_work held = NULL;
  if (own_rank() != 0) CHECK_OK(start_sum("sum", &value, 1, kSet, &held));
  for (int i = 0; i < 20; ++i) CHECK(sum_in(world, i) == size * i);
  if (own_rank() != 0) CHECK_OK(ronde_work_done(held, &done));
  CHECK(done == 0);
  barrier_of(world);
  if (own_rank() == 0) CHECK_OK(start_sum("sum", &value, 1, kSet, &held));
  CHECK_OK(finish(held));
  CHECK(value == size);
  CHECK_OK(ronde_world_shutdown(world));
  check_job_goes_on();
}

static void members_alone_make_a_world(void) {
  static const int members[] = {2, 0};
  uint32_t world = 0;
  uint32_t within = 0;
  if (own_rank() == 1) {
    CHECK_FAILS(RONDE_E_USAGE, "this rank is not among its ranks, 2,0",
                ronde_world_make_within("members", kSet, members, 2, &world));
  } else {
    CHECK_OK(ronde_world_make_within("members", kSet, members, 2, &world));
    CHECK(rank_in(world) == (own_rank() == 2 ? 0 : 1) && sum_in(world, own_rank()) == 2);
    /* Its ranks make another world, are numbered as in the first, and outlive it. */
    CHECK_OK(ronde_world_make_within("within", world, reversed(2), 2, &within));
    CHECK_OK(ronde_world_shutdown(world));
    CHECK(rank_in(within) == (own_rank() == 2 ? 1 : 0) && sum_in(within, 3) == 6);
    CHECK_OK(ronde_world_shutdown(within));
  }
  check_job_goes_on();
}

static void a_world_has_process_sets(void) {
  const int size = all_ranks();
  const uint32_t world = make_reversed("sets");
  uint32_t set = 0;
  uint32_t made = 0;
  int ranks[8];
  int number = 8;
  CHECK_OK(ronde_world_process_set_add(world, reversed(size), size, &set));
  CHECK(set >> 31 == 1 && set != world);
  CHECK(rank_in(set) == own_rank() && sum_in(set, 1) == size);
  CHECK_OK(ronde_process_set_ranks(set, ranks, &number));
  CHECK(number == size && ranks[0] == size - 1);
  if (rank_in(world) == 0) {
    CHECK_OK(ronde_world_process_set_create(world, kFirst, 1, "tag", &made));
    CHECK(made != set && sum_in(made, 4) == 4);
    CHECK_OK(ronde_process_set_remove(made));
  }
  CHECK_FAILS(RONDE_E_USAGE, "cannot be removed", ronde_process_set_remove(world));
  CHECK_OK(ronde_process_set_remove(set));
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "process set", ronde_size(set, &number));
  CHECK_OK(ronde_world_shutdown(world));
}

static void a_group_in_a_world(void) {
  const uint32_t world = make_reversed("groups");
  double values[] = {1, 2};
  ronde_work works[2];
  ronde_work work = NULL;
  CHECK_OK(ronde_group_begin(world));
  CHECK_OK(start_sum("one", &values[0], 1, world, &works[0]));
  CHECK_OK(start_sum("two", &values[1], 1, world, &works[1]));
  CHECK(sum_in(kSet, 1) == all_ranks()); /* another set has no part in it */
  CHECK_OK(ronde_group_end(&work));
  CHECK_OK(finish(work));
  for (int i = 0; i < 2; ++i) CHECK_OK(finish(works[i]));
  CHECK(values[0] == all_ranks() && values[1] == 2 * all_ranks());
  CHECK_OK(ronde_world_shutdown(world));
}

static void the_end_of_a_world(void) {
  const uint32_t world = make_reversed("again");
  double value = 1;
  ronde_work work = NULL;
  uint32_t other = 0;
  CHECK_FAILS(RONDE_E_USAGE, "is in a world 'again' already",
              ronde_world_make_within("again", kSet, reversed(all_ranks()), all_ranks(), &other));
  CHECK_OK(ronde_world_shutdown(world));
  check_no_world_is(world);
  CHECK(start_sum(NULL, &value, 1, world, &work) == RONDE_E_NOT_INITIALIZED && work == NULL);
  /* Its name is free, its number is not. */
  other = make_reversed("again");
  CHECK(other != world && sum_in(other, 1) == all_ranks());
  CHECK_OK(ronde_world_shutdown(other));
}

static void what_cannot_make_a_world(void) {
  static const int far[] = {0, 99};
  static const struct {
    const char* name;
    const int* ranks;
    int count, code;
    const char* part;
  } kBad[] = {
      {NULL, kFirst, 1, RONDE_E_INVALID_ARGUMENT, "name is NULL"},
      {"w", NULL, 1, RONDE_E_INVALID_ARGUMENT, "ranks is NULL"},
      {"w", kFirst, -1, RONDE_E_INVALID_ARGUMENT, "count is negative"},
      {"a/b", kFirst, 1, RONDE_E_USAGE, "'a/b' cannot name a world"},
      {"w", far, 2, RONDE_E_USAGE, "different ones of 0 to"},
  };
  const ronde_init_options nobody = {.struct_size = sizeof(nobody)};
  uint32_t world = 7;
  for (size_t i = 0; i < sizeof(kBad) / sizeof(kBad[0]); ++i) {
    const int count = kBad[i].count;
    CHECK_FAILS(kBad[i].code, kBad[i].part,
                ronde_world_make_within(kBad[i].name, kSet, kBad[i].ranks, count, &world));
  }
  CHECK(ronde_world_make_within("w", kSet, kFirst, 1, NULL) == RONDE_E_INVALID_ARGUMENT);
  CHECK(ronde_world_make_within("w", kUnknown, kFirst, 1, &world) == RONDE_E_UNKNOWN_SET);
  CHECK_FAILS(RONDE_E_USAGE, "not told who its ranks are", ronde_world_make("w", NULL, &world));
  CHECK_FAILS(RONDE_E_USAGE, "not told who its ranks are", ronde_world_make("w", &nobody, &world));
  CHECK(world == 7);
}

static void what_a_world_refuses(void) {
  const ronde_init_options options = {.struct_size = sizeof(options), .size = 1};
  double value = 1;
  int number = 0;
  uint32_t world = 0;
  uint32_t set = 0;
  ronde_work work = NULL;
  CHECK_OK(ronde_world_make("alone", &options, &world));
  CHECK(ronde_world_abort(world, NULL) == RONDE_E_INVALID_ARGUMENT);
  CHECK(ronde_world_local(world, NULL, &number) == RONDE_E_INVALID_ARGUMENT);
  CHECK(ronde_world_process_set_add(world, kFirst, 1, NULL) == RONDE_E_INVALID_ARGUMENT);
  CHECK_OK(ronde_world_process_set_add(world, kFirst, 1, &set));
  check_no_world_is(set);
  check_no_world_is(kSet);
  check_no_world_is(kUnknown);
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "there is no process set 2147495993",
              start_sum(NULL, &value, 1, kUnknown, &work));
  CHECK(ronde_process_set_remove(kUnknown) == RONDE_E_UNKNOWN_SET);
  CHECK_OK(ronde_world_shutdown(world));
}

const struct test_case kWorlds[] = {
    {"all ranks reversed are a world", all_ranks_reversed_are_a_world, ""},
    {"members alone make a world", members_alone_make_a_world, "[n3]"},
    {"a world has process sets", a_world_has_process_sets, ""},
    {"a group in a world", a_group_in_a_world, ""},
    {"the end of a world", the_end_of_a_world, ""},
    {"what cannot make a world", what_cannot_make_a_world, ""},
    {"what a world refuses", what_a_world_refuses, "[n2]"},
    CASES_END,
};
