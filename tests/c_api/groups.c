/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that start together or not at all. */
#include <pthread.h>
#include <semaphore.h>

#include "check.h"

enum { kSet = RONDE_ALL_RANKS, kThreadCount = 4 };

struct worker {
  int number;
  pthread_t thread;
};

/* Names are this thread's own, so that threads may overtake each other on other ranks. */
static void* run_groups(void* context) {
  const struct worker* const worker = context;
  for (int round = 0; round < 40; ++round) {
    enum { kMembers = 3 };
    double values[kMembers];
    ronde_work works[kMembers];
    ronde_work group = NULL;
    int done = 0;
    CHECK_OK(ronde_group_begin(kSet));
    for (int i = 0; i < kMembers; ++i) {
      char name[64];
      snprintf(name, sizeof(name), "thread %d, %d", worker->number, i);
      values[i] = i;
      CHECK_OK(start_sum(name, &values[i], 1, kSet, &works[i]));
    }
    CHECK_OK(ronde_group_end(&group));
    CHECK_OK(ronde_work_wait(group, -1));
    CHECK_OK(ronde_work_done(group, &done));
    CHECK(done == 1);
    CHECK_INVALID("no result", ronde_work_output(group, NULL, NULL, NULL, NULL));
    CHECK_OK(ronde_work_free(group));
    for (int i = 0; i < kMembers; ++i) {
      CHECK_OK(ronde_work_wait(works[i], 0)); /* done with the group */
      CHECK(values[i] == all_ranks() * i);
      CHECK_OK(ronde_work_free(works[i]));
    }
  }
  return NULL;
}

static void a_group_in_each_thread(void) {
  struct worker workers[kThreadCount];
  char last_error[1 << 10];
  snprintf(last_error, sizeof(last_error), "%s", ronde_last_error());
  for (int i = 0; i < kThreadCount; ++i) {
    workers[i].number = i;
    CHECK(pthread_create(&workers[i].thread, NULL, run_groups, &workers[i]) == 0);
  }
  for (int i = 0; i < kThreadCount; ++i) CHECK(pthread_join(workers[i].thread, NULL) == 0);
  CHECK(strcmp(ronde_last_error(), last_error) == 0); /* each thread has its own */
}

/* A group whose works are freed before the start, and one without any. */
static void groups_without_works(void) {
  double value = own_rank();
  ronde_work work = NULL;
  ronde_work group = NULL;
  for (int members = 1; members >= 0; --members) {
    CHECK_OK(ronde_group_begin(kSet));
    if (members) CHECK_OK(start_broadcast(NULL, &value, 1, 0, kSet, &work));
    if (members) CHECK_OK(ronde_work_free(work));
    CHECK_RUN(ronde_group_end(&group), group);
    CHECK(value == 0);
  }
}

static void count_call(void* context, int status) {
  CHECK(status == RONDE_OK);
  ++*(int*)context;
}

static void an_open_group_is_not_started(void) {
  double value = 1;
  double other = 1;
  int done = 0;
  int calls = 0;
  ronde_work work = NULL;
  ronde_work at_once = NULL;
  ronde_work group = NULL;
  const uint32_t set = add_set_of_all();
  const ronde_tensor message = tensor_of(&value, NULL, 0, RONDE_F64);
  CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_end(&group));
  CHECK(group == NULL);
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_FAILS(RONDE_E_USAGE, "has a group open", ronde_group_begin(set));
  CHECK_OK(start_sum("held back", &value, 1, kSet, &work));
  CHECK_OK(ronde_work_on_done(work, count_call, &calls));
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
  CHECK(calls == 0 && value == 1);
  CHECK_RUN(ronde_group_end(&group), group);
  CHECK_OK(finish(work));
  CHECK(value == all_ranks());
  CHECK_OK(ronde_process_set_remove(set));
}

/* What the engine refuses at the end of the group is the code of the call and of all works. */
static void a_group_that_cannot_start(void) {
  double values[2] = {1, 1};
  for (int same_memory = 0; same_memory <= 1; ++same_memory) {
    const int code = same_memory ? RONDE_E_USAGE : RONDE_E_DUPLICATE_NAME;
    const char* const part = same_memory ? "list a tensor once in a group" : "'x'";
    ronde_work works[2];
    ronde_work group = NULL;
    CHECK_OK(ronde_group_begin(kSet));
    CHECK_OK(start_sum("x", &values[0], 1, kSet, &works[0]));
    CHECK_OK(start_sum(same_memory ? "y" : "x", &values[!same_memory], 1, kSet, &works[1]));
    CHECK_FAILS(code, part, ronde_group_end(&group));
    CHECK(group == NULL);
    for (int i = 0; i < 2; ++i) CHECK_FAILS(code, part, finish(works[i]));
  }
  check_job_continues();
}

/* What the ranks refuse is the code of the group's work and of all in it. */
static void one_bad_member(void) {
  double values[2] = {1, 0};
  ronde_work works[2];
  ronde_work group = NULL;
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(start_sum("good", &values[0], 1, kSet, &works[0]));
  CHECK_OK(start_broadcast("bad", &values[1], 1, 9, kSet, &works[1]));
  CHECK_OK(ronde_group_end(&group));
  CHECK_FAILS(RONDE_E_USAGE, "root 9 is out of range", finish(group));
  for (int i = 0; i < 2; ++i) CHECK(finish(works[i]) == RONDE_E_USAGE);
  check_job_continues();
}

/* One rank cancels its group and begins another. */
static void a_group_that_is_cancelled(void) {
  double values[2] = {1, 1};
  ronde_work works[2];
  ronde_work group = NULL;
  for (int ends = own_rank() != 0; ends <= 1; ++ends) {
    CHECK_OK(ronde_group_begin(kSet));
    CHECK_OK(start_sum("one", &values[0], 1, kSet, &works[0]));
    CHECK_OK(start_sum("two", &values[1], 1, kSet, &works[1]));
    if (ends) break;
    begin_capture();
    CHECK_OK(ronde_work_free(works[0]));
    CHECK_OK(ronde_group_cancel());
    CHECK(end_capture()[0] == '\0'); /* the program knows */
    CHECK_FAILS(RONDE_E_USAGE, "ronde_group_cancel()", finish(works[1]));
    CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_cancel());
    CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_end(&group));
  }
  CHECK_RUN(ronde_group_end(&group), group);
  for (int i = 0; i < 2; ++i) CHECK_OK(finish(works[i]));
  CHECK(values[0] == all_ranks());
}

struct groups_inside {
  double values[4];
  ronde_work works[4];
};

/* The group of the thread on which it runs is out of reach. */
static void begin_groups_inside(void* context, int status) {
  struct groups_inside* const inside = context;
  ronde_work group = NULL;
  CHECK(status == RONDE_OK);
  CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_end(&group));
  CHECK_OK(start_sum("in none", &inside->values[0], 1, kSet, &inside->works[0]));
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(start_sum("ended", &inside->values[1], 1, kSet, &inside->works[1]));
  CHECK_OK(ronde_group_end(&group));
  CHECK_OK(ronde_work_free(group));
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(start_sum("left open", &inside->values[2], 1, kSet, &inside->works[2]));
  CHECK_OK(start_sum("forgotten", &inside->values[3], 1, kSet, &inside->works[3]));
  CHECK_OK(ronde_work_free(inside->works[3]));
}

static void groups_of_a_callback(void) {
  struct groups_inside inside = {.values = {1, 1, 1, 1}};
  double value = 1;
  ronde_work older = NULL;
  ronde_work work = NULL;
  ronde_work group = NULL;
  CHECK_OK(ronde_barrier(NULL, &older));
  CHECK_OK(ronde_work_wait(older, -1));
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(start_sum("before", &value, 1, kSet, &work));
  begin_capture();
  CHECK_OK(ronde_work_on_done(older, begin_groups_inside, &inside)); /* at once */
  const char* const log = end_capture();
  CHECK(strstr(log, "warning: allreduce 'forgotten' failed and nobody asked: the callback") !=
        NULL);
  CHECK(strstr(log, "left open") == NULL); /* that one can still be asked */
  CHECK_FAILS(RONDE_E_USAGE, "the callback that began the group returned", finish(inside.works[2]));
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(finish(inside.works[i]));
    CHECK(inside.values[i] == all_ranks() && inside.values[2 + i] == 1);
  }
  CHECK_RUN(ronde_group_end(&group), group); /* as it was */
  CHECK_OK(finish(work));
  CHECK(value == all_ranks());
  CHECK_OK(finish(older));
}

static double left_behind = 1;

static void* leave_a_group_open(void* work) {
  ronde_work freed = NULL;
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(start_sum("left behind", &left_behind, 1, kSet, work));
  CHECK_OK(start_sum("forgotten", &left_behind, 1, kSet, &freed));
  CHECK_OK(ronde_work_free(freed));
  return NULL;
}

/* The error of a work that was freed is logged, as nobody can ask for it. */
static void the_thread_ends(void) {
  pthread_t thread;
  ronde_work work = NULL;
  begin_capture();
  CHECK(pthread_create(&thread, NULL, leave_a_group_open, &work) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  const char* const log = end_capture();
  CHECK(strstr(log, "warning: allreduce 'forgotten' failed and nobody asked: the thread that") !=
        NULL);
  CHECK_FAILS(RONDE_E_USAGE, "ended without ronde_group_end()", finish(work));
  check_job_continues();
}

static void left_open_at_shutdown(void) {
  double value = 1;
  ronde_work work = NULL;
  ronde_work group = NULL;
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(start_sum("left open", &value, 1, kSet, &work));
  CHECK_FAILS(RONDE_E_USAGE, "1 group(s) were left open", ronde_shutdown());
  CHECK(!ronde_is_initialized());
  CHECK_FAILS(RONDE_E_USAGE, "left open when ronde_shutdown()", finish(work));
  CHECK_FAILS(RONDE_E_USAGE, "left open when ronde_shutdown()", ronde_group_end(&group));
  CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_end(&group));
}

/* A thread that is in ronde_group_end() while another ends the group of ranks. */
struct ending {
  sem_t is_inside;
  sem_t may_return;
  ronde_work works[2];
};

static void stay_inside(void* context, int status) {
  struct ending* const ending = context;
  CHECK(status == RONDE_E_DUPLICATE_NAME);
  CHECK(sem_post(&ending->is_inside) == 0);
  CHECK(sem_wait(&ending->may_return) == 0);
}

static void* end_a_group(void* context) {
  struct ending* const ending = context;
  double values[2] = {1, 1};
  ronde_work group = NULL;
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(start_sum("twice", &values[0], 1, kSet, &ending->works[0]));
  CHECK_OK(start_sum("twice", &values[1], 1, kSet, &ending->works[1]));
  CHECK_OK(ronde_work_on_done(ending->works[0], stay_inside, ending));
  CHECK_FAILS(RONDE_E_DUPLICATE_NAME, "twice", ronde_group_end(&group));
  return NULL;
}

static void ended_during_shutdown(void) {
  pthread_t thread;
  struct ending ending;
  CHECK(sem_init(&ending.is_inside, 0, 0) == 0);
  CHECK(sem_init(&ending.may_return, 0, 0) == 0);
  CHECK(pthread_create(&thread, NULL, end_a_group, &ending) == 0);
  CHECK(sem_wait(&ending.is_inside) == 0);
  CHECK_OK(ronde_shutdown()); /* that group was not left open */
  CHECK(sem_post(&ending.may_return) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  for (int i = 0; i < 2; ++i) CHECK_FAILS(RONDE_E_DUPLICATE_NAME, "twice", finish(ending.works[i]));
}

const struct test_case kGroups[] = {
    CASE(a_group_in_each_thread),
    CASE(groups_without_works),
    CASE(an_open_group_is_not_started),
    CASE(a_group_that_cannot_start),
    CASE(one_bad_member),
    CASE(a_group_that_is_cancelled),
    CASE(groups_of_a_callback),
    CASE(the_thread_ends),
    CASE(left_open_at_shutdown),
    CASE(ended_during_shutdown),
    CASES_END,
};
