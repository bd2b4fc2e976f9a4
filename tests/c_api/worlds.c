/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds of the group's ranks, and the numbers that name them and their process sets. */
#include "check.h"

#define SUITE "worlds"
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

static void check_no_world_is(uint32_t number) {
  uint32_t set = 0;
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "there is no world", ronde_world_shutdown(number));
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "there is no world", ronde_world_abort(number, "text"));
  CHECK(ronde_world_process_set_add(number, kFirst, 1, &set) == RONDE_E_UNKNOWN_SET);
  CHECK(ronde_world_process_set_create(number, kFirst, 1, NULL, &set) == RONDE_E_UNKNOWN_SET);
}

CASE(a_world_is_a_set_with_a_number) {
  const int size = all_ranks();
  const uint32_t world = make_reversed("reversed");
  uint32_t set = 0;
  uint32_t made = 0;
  int ranks[8];
  int number = 8;
  int local[2];
  double value = 1;
  ronde_work work = NULL;
  ronde_work group = NULL;
  CHECK(world >> 31 == 1 && rank_in(world) == size - 1 - own_rank());
  CHECK_OK(ronde_world_local(world, &local[0], &local[1]));
  CHECK(local[0] == rank_in(world) && local[1] == size);
  CHECK_OK(ronde_world_process_set_add(world, reversed(size), size, &set));
  CHECK(set >> 31 == 1 && set != world && sum_in(set, 1) == size);
  CHECK_OK(ronde_process_set_ranks(set, ranks, &number));
  CHECK(number == size && ranks[0] == size - 1);
  if (rank_in(world) == 0) {
    CHECK_OK(ronde_world_process_set_create(world, kFirst, 1, "tag", &made));
    CHECK(made != set && sum_in(made, 4) == 4);
    CHECK_OK(ronde_process_set_remove(made));
  }
  CHECK_OK(ronde_group_begin(world));
  CHECK_OK(start_sum("in the group", &value, 1, world, &work));
  CHECK(sum_in(kSet, 1) == size); /* another set, whose operations start at once */
  CHECK_RUN(ronde_group_end(&group), group);
  CHECK_OK(finish(work));
  CHECK(value == size);
  CHECK_OK(ronde_process_set_remove(set));
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "process set", ronde_size(set, &number));
  CHECK_OK(ronde_world_shutdown(world));
  check_no_world_is(world);
  CHECK(start_sum(NULL, &value, 1, world, &work) == RONDE_E_NOT_INITIALIZED && work == NULL);
  /* Its name may be used again, its number is not. */
  made = make_reversed("reversed");
  CHECK(made != world && sum_in(made, 1) == size);
  CHECK_OK(ronde_world_shutdown(made));
}

CASE(what_cannot_make_a_world) {
  const ronde_init_options nobody = {.struct_size = sizeof(nobody)};
  uint32_t world = 7;
  CHECK_INVALID("name is NULL", ronde_world_make_within(NULL, kSet, kFirst, 1, &world));
  CHECK_INVALID("ranks is NULL", ronde_world_make_within("w", kSet, NULL, 1, &world));
  CHECK_INVALID("count is negative", ronde_world_make_within("w", kSet, kFirst, -1, &world));
  CHECK_INVALID("world is NULL", ronde_world_make_within("w", kSet, kFirst, 1, NULL));
  CHECK(ronde_world_make_within("w", kUnknown, kFirst, 1, &world) == RONDE_E_UNKNOWN_SET);
  CHECK_FAILS(RONDE_E_USAGE, "not told who its ranks are", ronde_world_make("w", &nobody, &world));
  CHECK(world == 7);
}

/* A set of a world is no world, nor is the group, nor a number that names nothing. */
CASE(what_is_no_world) {
  const uint32_t world = make_reversed("other");
  double value = 1;
  int number = 0;
  uint32_t set = 0;
  ronde_work work = NULL;
  CHECK_INVALID("text is NULL", ronde_world_abort(world, NULL));
  CHECK_INVALID("NULL", ronde_world_local(world, NULL, &number));
  CHECK_INVALID("set is NULL", ronde_world_process_set_add(world, kFirst, 1, NULL));
  CHECK_OK(ronde_world_process_set_add(world, kFirst, 1, &set));
  check_no_world_is(set);
  check_no_world_is(kSet);
  check_no_world_is(kUnknown);
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "there is no process set 2147495993",
              start_sum(NULL, &value, 1, kUnknown, &work));
  CHECK_OK(ronde_world_shutdown(world));
}
