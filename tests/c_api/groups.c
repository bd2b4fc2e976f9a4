/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that start together or not at all. */
#include <pthread.h>

#include "check.h"

#define SUITE "groups"

/* Begins a group of two sums. */
static void begin_two(const char* first, const char* second, double values[2],
                      ronde_work works[2]) {
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(start_sum(first, &values[0], 1, kSet, &works[0]));
  CHECK_OK(start_sum(second, &values[1], 1, kSet, &works[1]));
}

static void end_group(void) {
  ronde_work group = NULL;
  CHECK_RUN(ronde_group_end(&group), group);
}

static void check_end_fails(int code, const char* part) {
  ronde_work group = NULL;
  CHECK_FAILS(code, part, ronde_group_end(&group));
  CHECK(group == NULL);
}

/* Names are this thread's own, so that threads may overtake each other on other ranks. */
static void* run_groups(void* names) {
  const char* const* const name = names;
  for (int round = 0; round < 40; ++round) {
    double values[2] = {1, 2};
    ronde_work works[2];
    ronde_work group = NULL;
    int done = 0;
    begin_two(name[0], name[1], values, works);
    CHECK_OK(ronde_group_end(&group));
    CHECK_OK(ronde_work_wait(group, -1));
    CHECK_OK(ronde_work_done(group, &done));
    CHECK(done == 1);
    CHECK_INVALID("no result", ronde_work_output(group, NULL, NULL, NULL, NULL));
    CHECK_OK(ronde_work_free(group));
    for (int i = 0; i < 2; ++i) {
      CHECK_OK(ronde_work_wait(works[i], 0)); /* done with the group */
      CHECK(values[i] == all_ranks() * (i + 1));
      CHECK_OK(ronde_work_free(works[i]));
    }
  }
  return NULL;
}

CASE(a_group_in_each_thread) {
  static const char* kNames[3][2] = {{"a", "b"}, {"c", "d"}, {"e", "f"}};
  pthread_t threads[3];
  char last_error[1 << 10];
  snprintf(last_error, sizeof(last_error), "%s", ronde_last_error());
  for (int i = 0; i < 3; ++i) {
    CHECK(pthread_create(&threads[i], NULL, run_groups, kNames[i]) == 0);
  }
  for (int i = 0; i < 3; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(strcmp(ronde_last_error(), last_error) == 0); /* each thread has its own */
}

/* A group whose works are freed before the start, and one without any. */
CASE(groups_without_works) {
  double value = own_rank();
  ronde_work work = NULL;
  for (int members = 1; members >= 0; --members) {
    CHECK_OK(ronde_group_begin(kSet));
    if (members) CHECK_OK(start_broadcast(NULL, &value, 1, 0, kSet, &work));
    if (members) CHECK_OK(ronde_work_free(work));
    end_group();
    CHECK(value == 0);
  }
}

CASE(an_open_group_is_not_started) {
  double value = 1;
  double other = 1;
  int done = 0;
  ronde_work work = NULL;
  ronde_work at_once = NULL;
  const uint32_t set = add_set_of_all();
  const ronde_tensor message = tensor_of(&value, NULL, 0, RONDE_F64);
  check_end_fails(RONDE_E_USAGE, "no group open");
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_FAILS(RONDE_E_USAGE, "has a group open", ronde_group_begin(set));
  CHECK_OK(start_sum("held back", &value, 1, kSet, &work));
  CHECK_FAILS(RONDE_E_USAGE, "ronde_group_end()", ronde_work_wait(work, -1));
  CHECK_FAILS(RONDE_E_USAGE, "ronde_group_end()", ronde_work_done(work, &done));
  CHECK_FAILS(RONDE_E_USAGE, "ronde_group_end()", ronde_work_wait_stream(work, NULL));
  CHECK_FAILS(RONDE_E_USAGE, "ronde_group_end()", ronde_work_output(work, NULL, NULL, NULL, NULL));
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "barrier cannot", ronde_barrier(NULL, &at_once));
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "join cannot", ronde_join(kSet, &at_once));
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "send cannot", ronde_send(&message, NULL, NULL, &at_once));
  /* A call that failed is not in the group, nor is an operation of another set. */
  CHECK(start_sum(NULL, NULL, 1, kSet, &at_once) == RONDE_E_INVALID_ARGUMENT);
  CHECK_RUN(start_sum(NULL, &other, 1, set, &at_once), at_once);
  CHECK(other == all_ranks());
  CHECK_INVALID("work is NULL", ronde_group_end(NULL));
  CHECK(value == 1);
  end_group();
  CHECK_OK(finish(work));
  CHECK(value == all_ranks());
  CHECK_OK(ronde_process_set_remove(set));
}

/* What the engine refuses at the end of the group is the code of the call and of all works; what
 * the ranks refuse later is that of the group's work and of all in it. */
CASE(groups_that_fail) {
  double values[2] = {1, 1};
  ronde_work works[2];
  ronde_work group = NULL;
  begin_two("x", "x", values, works);
  check_end_fails(RONDE_E_DUPLICATE_NAME, "'x'");
  for (int i = 0; i < 2; ++i) CHECK_FAILS(RONDE_E_DUPLICATE_NAME, "'x'", finish(works[i]));
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(start_sum("good", &values[0], 1, kSet, &works[0]));
  CHECK_OK(start_broadcast("bad", &values[1], 1, 9, kSet, &works[1]));
  CHECK_OK(ronde_group_end(&group));
  CHECK_FAILS(RONDE_E_USAGE, "root 9 is out of range", finish(group));
  for (int i = 0; i < 2; ++i) CHECK(finish(works[i]) == RONDE_E_USAGE);
  check_job_continues();
}

/* One rank cancels its group and begins another. */
CASE(a_group_that_is_cancelled) {
  double values[2] = {1, 1};
  ronde_work works[2];
  if (own_rank() == 0) {
    begin_two("one", "two", values, works);
    CHECK_OK(ronde_work_free(works[0]));
    CHECK_OK(ronde_group_cancel());
    CHECK_FAILS(RONDE_E_USAGE, "ronde_group_cancel()", finish(works[1]));
    CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_cancel());
    check_end_fails(RONDE_E_USAGE, "no group open");
  }
  begin_two("one", "two", values, works);
  end_group();
  for (int i = 0; i < 2; ++i) CHECK_OK(finish(works[i]));
  CHECK(values[0] == all_ranks());
}

/* One of its works is freed, the other one is given. */
static void* leave_a_group_open(void* work) {
  static double values[2] = {1, 1};
  ronde_work works[2];
  begin_two("left open", "forgotten", values, works);
  *(ronde_work*)work = works[0];
  CHECK_OK(ronde_work_free(works[1]));
  return NULL;
}

/* The group of the thread on which it runs is out of reach. */
static void begin_groups_inside(void* work, int status) {
  ronde_work ended = NULL;
  CHECK(status == RONDE_OK);
  check_end_fails(RONDE_E_USAGE, "no group open");
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(ronde_group_end(&ended));
  CHECK_OK(ronde_work_free(ended));
  leave_a_group_open(work);
}

CASE(groups_of_a_callback) {
  double value = 1;
  ronde_work older = NULL;
  ronde_work work = NULL;
  ronde_work inside = NULL;
  CHECK_OK(ronde_barrier(NULL, &older));
  CHECK_OK(ronde_work_wait(older, -1));
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(start_sum("before", &value, 1, kSet, &work));
  CHECK_OK(ronde_work_on_done(older, begin_groups_inside, &inside)); /* at once */
  CHECK_FAILS(RONDE_E_USAGE, "callback that began the group returned", finish(inside));
  end_group(); /* as it was */
  CHECK_OK(finish(work));
  CHECK(value == all_ranks());
  CHECK_OK(finish(older));
}

CASE(the_thread_ends) {
  pthread_t thread;
  ronde_work work = NULL;
  CHECK(pthread_create(&thread, NULL, leave_a_group_open, &work) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_FAILS(RONDE_E_USAGE, "ended without ronde_group_end()", finish(work));
  check_job_continues();
}

/* A thread that is in ronde_group_end() while another ends the group of ranks. */
struct ending {
  pthread_barrier_t meeting;
  ronde_work works[2];
};

static void stay_inside(void* context, int status) {
  struct ending* const ending = context;
  CHECK(status == RONDE_E_DUPLICATE_NAME);
  for (int i = 0; i < 2; ++i) pthread_barrier_wait(&ending->meeting); /* it shuts down between */
}

static void* end_a_group(void* context) {
  struct ending* const ending = context;
  double values[2] = {1, 1};
  begin_two("twice", "twice", values, ending->works);
  CHECK_OK(ronde_work_on_done(ending->works[0], stay_inside, ending));
  check_end_fails(RONDE_E_DUPLICATE_NAME, "twice");
  return NULL;
}

/* The group that is being ended is not counted as left open. */
CASE(groups_at_shutdown) {
  double value = 1;
  pthread_t thread;
  struct ending ending;
  ronde_work work = NULL;
  CHECK(pthread_barrier_init(&ending.meeting, NULL, 2) == 0);
  CHECK(pthread_create(&thread, NULL, end_a_group, &ending) == 0);
  pthread_barrier_wait(&ending.meeting);
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(start_sum("left open", &value, 1, kSet, &work));
  CHECK_FAILS(RONDE_E_USAGE, "1 group(s) were left open", ronde_shutdown());
  CHECK(!ronde_is_initialized());
  pthread_barrier_wait(&ending.meeting);
  CHECK(pthread_join(thread, NULL) == 0);
  for (int i = 0; i < 2; ++i) CHECK_FAILS(RONDE_E_DUPLICATE_NAME, "twice", finish(ending.works[i]));
  CHECK_FAILS(RONDE_E_USAGE, "left open when ronde_shutdown()", finish(work));
  check_end_fails(RONDE_E_USAGE, "left open when ronde_shutdown()");
  check_end_fails(RONDE_E_USAGE, "no group open");
}
