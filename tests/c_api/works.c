/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a work. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "check.h"

enum { kSet = RONDE_ALL_RANKS };

/* A sum that is not done before release() was called: rank 0 holds it back. */
struct held {
  const char* name;
  double value;
  ronde_work work;
};

static void start_held(struct held* held) {
  CHECK_OK(start_sum(held->name, &held->value, 1, kSet, &held->work));
}

static void hold(struct held* held) {
  if (own_rank() != 0) start_held(held);
}

static void release(struct held* held) {
  if (own_rank() == 0) start_held(held);
}

/* What a callback received. */
struct note {
  atomic_int calls;
  int status;
};

static void note_end(void* context, int status) {
  struct note* const note = context;
  note->status = status;
  atomic_fetch_add(&note->calls, 1);
}

static void wait_for_note(struct note* note, int status) {
  const struct timespec pause = {0, 1000 * 1000};
  while (atomic_load(&note->calls) == 0) nanosleep(&pause, NULL);
  CHECK(note->status == status);
}

static void a_wait_and_its_end(void) {
  struct note early = {0};
  struct note late = {0};
  struct note failed = {0};
  struct held held = {"held", 1, NULL};
  int done = -1;
  hold(&held);
  if (own_rank() != 0) {
    CHECK_OK(ronde_work_on_done(held.work, note_end, &early));
    CHECK_OK(ronde_work_done(held.work, &done));
    CHECK(done == 0);
    CHECK_FAILS(RONDE_E_TIMEOUT, "not done", ronde_work_wait(held.work, 0));
    CHECK_FAILS(RONDE_E_TIMEOUT, "not done", ronde_work_wait(held.work, 0.01));
    CHECK_FAILS(RONDE_E_PENDING, "ronde_work_wait()",
                ronde_work_output(held.work, NULL, NULL, NULL, NULL));
    CHECK(atomic_load(&early.calls) == 0);
  }
  barrier_of(kSet);
  release(&held);
  CHECK_OK(ronde_work_wait(held.work, 1e300)); /* for ever */
  CHECK(held.value == all_ranks());
  CHECK_OK(ronde_work_done(held.work, &done));
  CHECK(done == 1);
  CHECK_OK(ronde_work_wait(held.work, 0)); /* again, and again */
  CHECK_OK(ronde_work_wait_stream(held.work, NULL));
  CHECK_OK(ronde_work_on_done(held.work, note_end, &late)); /* at once */
  CHECK(atomic_load(&late.calls) == 1 && late.status == RONDE_OK);
  if (own_rank() != 0) wait_for_note(&early, RONDE_OK);
  CHECK_OK(ronde_work_free(held.work));
  CHECK_OK(start_broadcast("no such root", &held.value, 1, 9, kSet, &held.work));
  CHECK_OK(ronde_work_on_done(held.work, note_end, &failed));
  CHECK_FAILS(RONDE_E_USAGE, "root 9 is out of range", finish(held.work));
  wait_for_note(&failed, RONDE_E_USAGE);
}

static void a_work_is_freed_once(void) {
  int done = 0;
  double value = 1;
  ronde_work first = NULL;
  ronde_work second = NULL;
  CHECK_RUN(start_sum("first", &value, 1, kSet, &first), first);
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed before", ronde_work_free(first));
  /* The next work has the same place in the table and another handle. */
  CHECK_OK(start_sum("second", &value, 1, kSet, &second));
  CHECK(second != first);
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed before", ronde_work_free(first));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed before", ronde_work_wait(first, -1));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed before", ronde_work_done(first, &done));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "none that", ronde_work_wait((ronde_work)&value, -1));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "NULL", ronde_work_wait(NULL, -1));
  CHECK_OK(ronde_work_free(NULL));
  CHECK_OK(finish(second));
  CHECK(value == all_ranks() * all_ranks());
}

struct waiter {
  pthread_t thread;
  const struct held* held;
  int status;
};

static sem_t about_to_wait;

static void* wait_elsewhere(void* context) {
  struct waiter* const waiter = context;
  const ronde_work work = waiter->held->work;
  CHECK(sem_post(&about_to_wait) == 0);
  waiter->status = ronde_work_wait(work, -1);
  CHECK(waiter->status != RONDE_OK || waiter->held->value == all_ranks());
  return NULL;
}

/* While threads wait for it. The buffer is the caller's again once the callback was called. */
static void a_pending_work_may_be_freed(void) {
  enum { kThreadCount = 3 };
  struct waiter waiters[kThreadCount];
  struct note note = {0};
  struct held held = {"freed early", 1, NULL};
  CHECK(sem_init(&about_to_wait, 0, 0) == 0);
  hold(&held);
  for (int i = 0; i < kThreadCount && own_rank() != 0; ++i) {
    waiters[i].held = &held;
    CHECK(pthread_create(&waiters[i].thread, NULL, wait_elsewhere, &waiters[i]) == 0);
    CHECK(sem_wait(&about_to_wait) == 0);
  }
  if (own_rank() != 0) {
    CHECK(ronde_work_wait(held.work, 0.05) == RONDE_E_TIMEOUT);
    CHECK_OK(ronde_work_on_done(held.work, note_end, &note));
    CHECK_OK(ronde_work_free(held.work));
  }
  barrier_of(kSet);
  release(&held);
  if (own_rank() == 0) {
    CHECK_OK(finish(held.work));
  } else {
    wait_for_note(&note, RONDE_OK);
  }
  CHECK(held.value == all_ranks());
  for (int i = 0; i < kThreadCount && own_rank() != 0; ++i) {
    CHECK(pthread_join(waiters[i].thread, NULL) == 0);
    /* A thread that came to wait after the handle was freed gets RONDE_E_INVALID_HANDLE. */
    CHECK(waiters[i].status == RONDE_OK || waiters[i].status == RONDE_E_INVALID_HANDLE);
  }
  /* The memory of an owned result stays until the operation is done, of which nobody hears. */
  for (int i = 0; i < 20; ++i) {
    CHECK_OK(start_gather(NULL, &held.value, 1, kSet, &held.work));
    CHECK_OK(ronde_work_free(held.work));
  }
  check_job_continues();
}

struct inside {
  struct note note;
  ronde_work waited_for;
  double value;
  ronde_work submitted;
};

static void call_from_inside(void* context, int status) {
  struct inside* const inside = context;
  uint32_t set = 0;
  const int rank = 0;
  CHECK(ronde_work_wait(inside->waited_for, -1) == RONDE_E_USAGE);
  CHECK(ronde_process_set_add(&rank, 1, &set) == RONDE_E_USAGE);
  CHECK_OK(start_sum("from a callback", &inside->value, 1, kSet, &inside->submitted));
  note_end(&inside->note, status);
}

static void a_callback_submits_but_does_not_block(void) {
  struct inside inside = {.value = 1};
  struct held held = {"before the callback", 1, NULL};
  struct held other = {"waited for in the callback", 1, NULL};
  hold(&held);
  hold(&other);
  inside.waited_for = other.work;
  if (own_rank() != 0) CHECK_OK(ronde_work_on_done(held.work, call_from_inside, &inside));
  barrier_of(kSet);
  release(&held);
  if (own_rank() != 0) {
    wait_for_note(&inside.note, RONDE_OK);
  } else {
    CHECK_OK(start_sum("from a callback", &inside.value, 1, kSet, &inside.submitted));
  }
  CHECK_OK(finish(held.work));
  CHECK_OK(finish(inside.submitted));
  CHECK(inside.value == all_ranks());
  release(&other);
  CHECK_OK(finish(other.work));
}

static void persistent_operations(void) {
  struct held held = {"persistent", 1, NULL};
  const int64_t one = 1;
  double value = 0;
  double other = 1;
  ronde_tensor tensor = tensor_of(&value, &one, 1, RONDE_F64);
  const ronde_operation_options options = named(held.name, kSet);
  ronde_persistent sum = NULL;
  ronde_persistent broadcast = NULL;
  ronde_work work = NULL;
  CHECK_INVALID("persistent is NULL", ronde_allreduce_init(&tensor, &tensor, &options, NULL));
  CHECK_OK(ronde_allreduce_init(&tensor, &tensor, &options, &sum));
  CHECK_OK(ronde_broadcast_init(NULL, &tensor, NULL, &broadcast));
  for (int step = 0; step < 3; ++step) {
    value = own_rank() + step;
    CHECK_RUN(ronde_start(broadcast, NULL, NULL, &work), work);
    CHECK(value == step);
    CHECK_RUN(ronde_start(sum, NULL, NULL, &work), work);
    CHECK(value == all_ranks() * step);
  }
  CHECK_RUN(ronde_start(sum, &other, &other, &work), work);
  CHECK(other == all_ranks());
  CHECK_OK(ronde_persistent_free(broadcast));
  CHECK_INVALID("work is NULL", ronde_start(sum, NULL, NULL, NULL));
  CHECK_INVALID("in place", ronde_start(sum, NULL, &value, &work));
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "part of a group", ronde_start(sum, NULL, NULL, &work));
  CHECK_OK(ronde_group_cancel());
  hold(&held);
  if (own_rank() != 0) {
    CHECK_FAILS(RONDE_E_DUPLICATE_NAME, "still in flight", ronde_start(sum, NULL, NULL, &work));
    CHECK(work == NULL);
  }
  barrier_of(kSet);
  release(&held);
  CHECK_OK(finish(held.work));
  CHECK_OK(ronde_start(sum, NULL, NULL, &work));
  CHECK_OK(ronde_persistent_free(sum)); /* the operation in flight continues */
  CHECK_OK(finish(work));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed before", ronde_start(sum, NULL, NULL, &work));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed before", ronde_persistent_free(sum));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "NULL", ronde_start(NULL, NULL, NULL, &work));
  CHECK_OK(ronde_persistent_free(NULL));
}

const struct test_case kWorks[] = {
    CASE(a_wait_and_its_end),          CASE(a_work_is_freed_once),
    CASE(a_pending_work_may_be_freed), CASE_OF(a_callback_submits_but_does_not_block, 2),
    CASE(persistent_operations),       CASES_END,
};
