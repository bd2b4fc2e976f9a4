/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads that submit, wait and look on at once. */
#include <pthread.h>
#include <stdatomic.h>

#include "rank.h"

enum { kThreadCount = 4, kRounds = 40, kInFlight = 3 };

struct worker {
  int number;
  uint32_t set;
  pthread_t thread;
};

/* Names are this thread's own, so that threads may overtake each other on other ranks. */
static void* sum_and_gather(void* context) {
  const struct worker* const worker = context;
  const int size = all_ranks();
  for (int round = 0; round < kRounds; ++round) {
    double values[kInFlight][5];
    ronde_work works[kInFlight];
    for (int i = 0; i < kInFlight; ++i) {
      char name[64];
      snprintf(name, sizeof(name), "thread %d, %d", worker->number, i);
      for (int k = 0; k < 5; ++k) values[i][k] = round + own_rank() + k;
      CHECK_OK(start_sum(name, values[i], 5, worker->set, &works[i]));
    }
    for (int i = kInFlight - 1; i >= 0; --i) {
      CHECK_OK(finish(works[i]));
      for (int k = 0; k < 5; ++k) {
        CHECK(values[i][k] == size * (round + k) + size * (size - 1) / 2.0);
      }
    }
    const int64_t own_rows = worker->number + 1;
    char name[64];
    int64_t rows = -1;
    snprintf(name, sizeof(name), "thread %d gathers", worker->number);
    CHECK_OK(start_gather(name, values[0], own_rows, worker->set, &works[0]));
    CHECK_OK(ronde_work_wait(works[0], -1));
    CHECK_OK(ronde_work_output(works[0], NULL, NULL, &rows, NULL));
    CHECK(rows == size * own_rows);
    CHECK_OK(ronde_work_free(works[0]));
  }
  return NULL;
}

static atomic_int stop;

/* One more that asks, and makes mistakes of its own. */
static void* look_on(void* unused) {
  static char json[1 << 16];
  (void)unused;
  while (!atomic_load(&stop)) {
    ronde_work work = NULL;
    int number = 0;
    CHECK_OK(ronde_stats_json(json, sizeof(json)));
    CHECK(json[0] == '{');
    CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed", ronde_work_done((ronde_work)json, &number));
    CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "ronde_allreduce: in->data is NULL",
                start_sum("x", NULL, 1, RONDE_ALL_RANKS, &work));
  }
  return NULL;
}

static void run_workers(void* (*body)(void* worker), const uint32_t* sets) {
  struct worker workers[kThreadCount];
  for (int i = 0; i < kThreadCount; ++i) {
    workers[i].number = i;
    workers[i].set = sets[i];
    CHECK(pthread_create(&workers[i].thread, NULL, body, &workers[i]) == 0);
  }
  for (int i = 0; i < kThreadCount; ++i) CHECK(pthread_join(workers[i].thread, NULL) == 0);
}

static void threads_submit_and_wait_at_once(void) {
  const uint32_t sets[kThreadCount] = {RONDE_ALL_RANKS};
  pthread_t looker;
  char last_error[1 << 10];
  snprintf(last_error, sizeof(last_error), "%s", ronde_last_error());
  atomic_store(&stop, 0);
  CHECK(pthread_create(&looker, NULL, look_on, NULL) == 0);
  run_workers(sum_and_gather, sets);
  atomic_store(&stop, 1);
  CHECK(pthread_join(looker, NULL) == 0);
  CHECK(strcmp(ronde_last_error(), last_error) == 0); /* the mistakes were another thread's */
}

static void a_set_for_each_thread(void) {
  uint32_t sets[kThreadCount];
  for (int i = 0; i < kThreadCount; ++i) {
    sets[i] = add_set_of_all();
  }
  run_workers(sum_and_gather, sets);
  for (int i = 0; i < kThreadCount; ++i) CHECK_OK(ronde_process_set_remove(sets[i]));
}

/* Each thread has its own group open. */
static void* run_groups(void* context) {
  const struct worker* const worker = context;
  for (int round = 0; round < kRounds; ++round) {
    double values[kInFlight];
    ronde_work works[kInFlight];
    ronde_work group = NULL;
    CHECK_OK(ronde_group_begin(worker->set));
    for (int i = 0; i < kInFlight; ++i) {
      char name[64];
      snprintf(name, sizeof(name), "group of thread %d, %d", worker->number, i);
      values[i] = i;
      CHECK_OK(start_sum(name, &values[i], 1, worker->set, &works[i]));
    }
    CHECK_OK(ronde_group_end(&group));
    CHECK_OK(finish(group));
    for (int i = 0; i < kInFlight; ++i) {
      CHECK_OK(finish(works[i]));
      CHECK(values[i] == all_ranks() * i);
    }
  }
  return NULL;
}

static void a_group_in_each_thread(void) {
  const uint32_t sets[kThreadCount] = {RONDE_ALL_RANKS};
  run_workers(run_groups, sets);
}

const struct test_case kThreads[] = {
    {"threads submit and wait at once", threads_submit_and_wait_at_once, ""},
    {"a set for each thread", a_set_for_each_thread, "[n2][n3]"},
    {"a group in each thread", a_group_in_each_thread, ""},
    CASES_END,
};
