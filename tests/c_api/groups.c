/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that start together or not at all. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "rank.h"

enum { kMembers = 3 };

static void start_members(double* values, const char* const* names, ronde_work* works) {
  for (int i = 0; i < kMembers; ++i) {
    values[i] = own_rank() + i;
    CHECK_OK(start_sum(names[i], &values[i], 1, RONDE_ALL_RANKS, &works[i]));
  }
}

static const char* const kNames[kMembers] = {"one", "two", "three"};

static void a_group_is_done_when_all_are(void) {
  double values[kMembers];
  ronde_work works[kMembers];
  ronde_work group = NULL;
  int done = 0;
  const double ranks_sum = all_ranks() * (all_ranks() - 1) / 2.0;
  for (int round = 0; round < 3; ++round) {
    CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
    start_members(values, kNames, works);
    CHECK_OK(ronde_group_end(&group));
    CHECK_OK(ronde_work_wait(group, -1));
    CHECK_OK(ronde_work_done(group, &done));
    CHECK(done == 1);
    for (int i = 0; i < kMembers; ++i) {
      CHECK_OK(ronde_work_wait(works[i], 0)); /* done with the group */
      CHECK(values[i] == ranks_sum + all_ranks() * i);
      CHECK_OK(ronde_work_free(works[i]));
    }
    CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "no result",
                ronde_work_output(group, NULL, NULL, NULL, NULL));
    CHECK_OK(ronde_work_free(group));
  }
  /* One of several kinds, whose works are not kept. */
  double value = own_rank();
  double other = own_rank();
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_OK(start_broadcast(NULL, &value, 1, 0, RONDE_ALL_RANKS, &works[0]));
  CHECK_OK(start_gather(NULL, &other, 1, RONDE_ALL_RANKS, &works[1]));
  CHECK_OK(ronde_work_free(works[0]));
  CHECK_OK(ronde_work_free(works[1]));
  CHECK_OK(ronde_group_end(&group));
  CHECK_OK(finish(group));
  CHECK(value == 0);
  /* An empty one. */
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_OK(ronde_group_end(&group));
  CHECK_OK(finish(group));
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
  CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_end(&group));
  CHECK(group == NULL);
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_FAILS(RONDE_E_USAGE, "has a group open", ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_FAILS(RONDE_E_USAGE, "has a group open", ronde_group_begin(set));
  CHECK_OK(start_sum("held back", &value, 1, RONDE_ALL_RANKS, &work));
  CHECK_OK(ronde_work_on_done(work, count_call, &calls));
  CHECK_FAILS(RONDE_E_USAGE, "ronde_group_end()", ronde_work_wait(work, -1));
  CHECK_FAILS(RONDE_E_USAGE, "ronde_group_end()", ronde_work_done(work, &done));
  CHECK_FAILS(RONDE_E_USAGE, "ronde_group_end()", ronde_work_wait_stream(work, NULL));
  CHECK_FAILS(RONDE_E_USAGE, "ronde_group_end()", ronde_work_output(work, NULL, NULL, NULL, NULL));
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "barrier cannot", ronde_barrier(NULL, &at_once));
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "join cannot", ronde_join(RONDE_ALL_RANKS, &at_once));
  const ronde_tensor message = tensor_of(&value, NULL, 0, RONDE_F64);
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "send cannot", ronde_send(&message, NULL, NULL, &at_once));
  /* What failed is not in the group, and another set is none of its business. */
  CHECK(start_sum(NULL, NULL, 1, RONDE_ALL_RANKS, &at_once) == RONDE_E_INVALID_ARGUMENT);
  CHECK_OK(start_sum(NULL, &other, 1, set, &at_once));
  CHECK_OK(finish(at_once));
  CHECK(other == all_ranks());
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "work is NULL", ronde_group_end(NULL));
  CHECK(calls == 0 && value == 1);
  CHECK_OK(ronde_group_end(&group));
  CHECK_OK(finish(group));
  CHECK_OK(finish(work));
  CHECK(value == all_ranks());
  CHECK_OK(ronde_process_set_remove(set));
}

static void groups_that_differ(void) {
  const int is_odd = own_rank() == all_ranks() - 1;
  const char* const odd_names[kMembers] = {"one", "two", "another"};
  double values[kMembers];
  ronde_work works[kMembers];
  ronde_work group = NULL;
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  start_members(values, is_odd ? odd_names : kNames, works);
  CHECK_OK(ronde_group_end(&group));
  CHECK_FAILS(RONDE_E_USAGE, "rank", ronde_work_wait(group, -1));
  for (int i = 0; i < kMembers; ++i) CHECK(finish(works[i]) == RONDE_E_USAGE);
  CHECK_OK(ronde_work_free(group));
  check_job_goes_on();
}

/* One member that cannot be refuses the others. */
static void one_bad_member(void) {
  double values[kMembers];
  double value = 0;
  ronde_work works[kMembers];
  ronde_work bad = NULL;
  ronde_work group = NULL;
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  start_members(values, kNames, works);
  CHECK_OK(start_broadcast("bad", &value, 1, 9, RONDE_ALL_RANKS, &bad));
  CHECK_OK(ronde_group_end(&group));
  CHECK_FAILS(RONDE_E_USAGE, "root 9 is out of range", finish(group));
  CHECK(finish(bad) == RONDE_E_USAGE);
  for (int i = 0; i < kMembers; ++i) {
    CHECK(finish(works[i]) == RONDE_E_USAGE);
    CHECK(values[i] == own_rank() + i); /* untouched */
  }
  /* What this rank alone can see ends the group at once, and its works. */
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_OK(start_sum("twice", &values[0], 1, RONDE_ALL_RANKS, &works[0]));
  CHECK_OK(start_sum("twice", &values[1], 1, RONDE_ALL_RANKS, &works[1]));
  CHECK_FAILS(RONDE_E_DUPLICATE_NAME, "twice", ronde_group_end(&group));
  CHECK(group == NULL);
  CHECK_FAILS(RONDE_E_DUPLICATE_NAME, "twice", finish(works[0]));
  CHECK_FAILS(RONDE_E_DUPLICATE_NAME, "twice", finish(works[1]));
  check_job_goes_on();
}

/* On one rank a call within the group fails, so that this rank gives the group up and begins
 * another. */
static void a_group_that_is_dropped(void) {
  double values[kMembers];
  ronde_work works[kMembers];
  ronde_work group = NULL;
  if (own_rank() == 0) {
    CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
    start_members(values, kNames, works);
    CHECK(start_sum("bad", NULL, 1, RONDE_ALL_RANKS, &group) == RONDE_E_INVALID_ARGUMENT);
    begin_capture();
    CHECK_OK(ronde_work_free(works[0]));
    CHECK_OK(ronde_group_cancel());
    CHECK(end_capture()[0] == '\0'); /* the program knows */
    for (int i = 1; i < kMembers; ++i) {
      CHECK_FAILS(RONDE_E_USAGE, "ronde_group_cancel()", finish(works[i]));
    }
    CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_cancel());
    CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_end(&group));
  }
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  start_members(values, kNames, works);
  CHECK_OK(ronde_group_end(&group));
  CHECK_OK(finish(group));
  for (int i = 0; i < kMembers; ++i) CHECK_OK(finish(works[i]));
  CHECK(values[0] == all_ranks() * (all_ranks() - 1) / 2.0);
}

static void groups_are_for_members(void) {
  const int first = 0;
  uint32_t set = 0;
  double value = 1;
  ronde_work work = NULL;
  ronde_work group = NULL;
  CHECK_OK(ronde_process_set_add(&first, 1, &set));
  if (own_rank() == 0) {
    CHECK_OK(ronde_group_begin(set));
    CHECK_OK(start_sum("alone", &value, 1, set, &work));
    CHECK_OK(ronde_group_end(&group));
    CHECK_OK(finish(group));
    CHECK_OK(finish(work));
  } else {
    CHECK_FAILS(RONDE_E_NOT_A_MEMBER, "this rank is not in process set", ronde_group_begin(set));
    CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_end(&group));
  }
  CHECK_OK(ronde_process_set_remove(set));
}

/* What a callback submits, wherever it runs. */
struct submission {
  double value;
  ronde_work work;
  atomic_int is_submitted;
};

static void submit_inside(void* context, int status) {
  struct submission* const inside = context;
  CHECK(status == RONDE_OK);
  CHECK_OK(start_sum("from a callback", &inside->value, 1, RONDE_ALL_RANKS, &inside->work));
  atomic_store(&inside->is_submitted, 1);
}

/* On some ranks it runs at once, on this thread, which has a group open; on others on any thread.
 */
static void a_callback_is_in_no_group_of_its_thread(void) {
  const struct timespec pause = {0, 100 * 1000};
  for (int round = 0; round < 50; ++round) {
    const int at_once = (round + own_rank()) % 2;
    struct submission inside = {.value = 1};
    double values[kMembers];
    double older_value = 1;
    ronde_work works[kMembers];
    ronde_work older = NULL;
    ronde_work group = NULL;
    int done = 0;
    CHECK_OK(start_sum("older", &older_value, 1, RONDE_ALL_RANKS, &older));
    if (at_once) CHECK_OK(ronde_work_wait(older, -1));
    CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
    CHECK_OK(ronde_work_on_done(older, submit_inside, &inside));
    if (at_once) CHECK(atomic_load(&inside.is_submitted) == 1);
    CHECK_OK(finish(older));
    while (!atomic_load(&inside.is_submitted)) nanosleep(&pause, NULL);
    CHECK_OK(ronde_work_done(inside.work, &done)); /* it is in no group that is open */
    start_members(values, kNames, works);
    CHECK_OK(ronde_group_end(&group));
    CHECK_OK(finish(group));
    for (int i = 0; i < kMembers; ++i) CHECK_OK(finish(works[i]));
    CHECK_OK(finish(inside.work));
    CHECK(inside.value == all_ranks());
  }
}

struct groups_inside {
  double values[3];
  ronde_work ended;
  ronde_work left_open;
  ronde_work forgotten;
};

static void begin_groups_inside(void* context, int status) {
  struct groups_inside* const inside = context;
  ronde_work group = NULL;
  CHECK(status == RONDE_OK);
  CHECK_FAILS(RONDE_E_USAGE, "no group open", ronde_group_end(&group));
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_OK(start_sum("ended", &inside->values[0], 1, RONDE_ALL_RANKS, &inside->ended));
  CHECK_OK(ronde_group_end(&group));
  CHECK_OK(ronde_work_free(group));
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_OK(start_sum("left open", &inside->values[1], 1, RONDE_ALL_RANKS, &inside->left_open));
  CHECK_OK(start_sum("forgotten", &inside->values[2], 1, RONDE_ALL_RANKS, &inside->forgotten));
  CHECK_OK(ronde_work_free(inside->forgotten));
}

static void groups_of_a_callback(void) {
  struct groups_inside inside = {.values = {1, 1, 1}};
  double value = 1;
  ronde_work older = NULL;
  ronde_work work = NULL;
  ronde_work group = NULL;
  CHECK_OK(ronde_barrier(NULL, &older));
  CHECK_OK(ronde_work_wait(older, -1));
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_OK(start_sum("before", &value, 1, RONDE_ALL_RANKS, &work));
  begin_capture();
  CHECK_OK(ronde_work_on_done(older, begin_groups_inside, &inside)); /* at once */
  const char* const log = end_capture();
  CHECK(strstr(log, "warning: allreduce 'forgotten' failed and nobody asked: the callback") !=
        NULL);
  CHECK(strstr(log, "left open") == NULL); /* that one is still to be asked */
  CHECK_FAILS(RONDE_E_USAGE, "the callback that began the group returned",
              finish(inside.left_open));
  CHECK_OK(finish(inside.ended));
  CHECK(inside.values[0] == all_ranks() && inside.values[1] == 1 && inside.values[2] == 1);
  CHECK_OK(ronde_group_end(&group)); /* as it was */
  CHECK_OK(finish(group));
  CHECK_OK(finish(work));
  CHECK(value == all_ranks());
  CHECK_OK(finish(older));
}

static double left_behind = 1;

static void* leave_a_group_open(void* work) {
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_OK(start_sum("left behind", &left_behind, 1, RONDE_ALL_RANKS, work));
  return NULL;
}

static void the_thread_of_a_group_ends(void) {
  pthread_t thread;
  ronde_work work = NULL;
  CHECK(pthread_create(&thread, NULL, leave_a_group_open, &work) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_FAILS(RONDE_E_USAGE, "ended without ronde_group_end()", finish(work));
  check_job_goes_on();
}

static void* leave_a_group_and_its_works(void* unused) {
  ronde_work work = NULL;
  (void)unused;
  leave_a_group_open(&work);
  CHECK_OK(ronde_work_free(work));
  return NULL;
}

/* Nobody could ask. */
static void a_group_that_nobody_hears_of_is_logged(void) {
  pthread_t thread;
  begin_capture();
  CHECK(pthread_create(&thread, NULL, leave_a_group_and_its_works, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  const char* const log = end_capture();
  CHECK(strstr(log, "warning: allreduce 'left behind' failed and nobody asked: the thread that") !=
        NULL);
  check_job_goes_on();
}

static void left_open_at_shutdown(void) {
  double value = 1;
  ronde_work work = NULL;
  ronde_work group = NULL;
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_OK(start_sum("left open", &value, 1, RONDE_ALL_RANKS, &work));
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
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_OK(start_sum("twice", &values[0], 1, RONDE_ALL_RANKS, &ending->works[0]));
  CHECK_OK(start_sum("twice", &values[1], 1, RONDE_ALL_RANKS, &ending->works[1]));
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
    {"a group is done when all are", a_group_is_done_when_all_are, ""},
    {"an open group is not started", an_open_group_is_not_started, ""},
    {"groups that differ", groups_that_differ, "[n2][n3]"},
    {"one bad member", one_bad_member, ""},
    {"a group that is dropped", a_group_that_is_dropped, ""},
    {"groups are for members", groups_are_for_members, ""},
    {"a callback is in no group of its thread", a_callback_is_in_no_group_of_its_thread, ""},
    {"groups of a callback", groups_of_a_callback, ""},
    {"the thread of a group ends", the_thread_of_a_group_ends, ""},
    {"a group that nobody hears of is logged", a_group_that_nobody_hears_of_is_logged, ""},
    {"left open at shutdown", left_open_at_shutdown, ""},
    {"ended during shutdown", ended_during_shutdown, ""},
    CASES_END,
};
