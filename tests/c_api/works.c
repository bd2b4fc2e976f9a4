/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a work. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "rank.h"

/* A sum that is not done before `release` has been called: rank 0 holds it back. */
struct held {
  double value;
  ronde_work work;
};

static void hold(struct held* held, const char* name) {
  held->value = 1;
  held->work = NULL;
  if (own_rank() != 0) CHECK_OK(start_sum(name, &held->value, 1, RONDE_ALL_RANKS, &held->work));
}

static void release(struct held* held, const char* name) {
  if (own_rank() == 0) CHECK_OK(start_sum(name, &held->value, 1, RONDE_ALL_RANKS, &held->work));
}

static void a_wait_that_ends_early_harms_nothing(void) {
  struct held held;
  int done = -1;
  hold(&held, "held");
  if (own_rank() != 0) {
    CHECK_OK(ronde_work_done(held.work, &done));
    CHECK(done == 0);
    CHECK_FAILS(RONDE_E_TIMEOUT, "not done", ronde_work_wait(held.work, 0));
    CHECK_FAILS(RONDE_E_TIMEOUT, "not done", ronde_work_wait(held.work, 0.01));
    CHECK_FAILS(RONDE_E_PENDING, "ronde_work_wait()",
                ronde_work_output(held.work, NULL, NULL, NULL, NULL));
  }
  barrier_of(RONDE_ALL_RANKS);
  release(&held, "held");
  CHECK_OK(ronde_work_wait(held.work, 1e300)); /* for ever */
  CHECK(held.value == all_ranks());
  CHECK_OK(ronde_work_done(held.work, &done));
  CHECK(done == 1);
  CHECK_OK(ronde_work_wait(held.work, 0)); /* again, and again */
  CHECK_OK(ronde_work_wait_stream(held.work, NULL));
  CHECK_OK(ronde_work_free(held.work));
}

static void results_of_other_kinds_are_refused(void) {
  int number = 0;
  int64_t splits[8];
  ronde_work work = NULL;
  CHECK_OK(ronde_barrier(NULL, &work));
  CHECK_OK(ronde_work_wait(work, -1));
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "no result",
              ronde_work_output(work, NULL, NULL, NULL, NULL));
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "no alltoall", ronde_work_splits(work, splits));
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "no recv", ronde_work_source(work, &number));
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "no join", ronde_work_last_rank(work, &number));
  CHECK_OK(ronde_work_free(work));
}

static void a_work_is_freed_once(void) {
  int done = 0;
  double value = 1;
  ronde_work first = NULL;
  ronde_work second = NULL;
  CHECK_OK(start_sum("first", &value, 1, RONDE_ALL_RANKS, &first));
  CHECK_OK(finish(first));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed before", ronde_work_free(first));
  /* The next one takes its place, and is another one. */
  CHECK_OK(start_sum("second", &value, 1, RONDE_ALL_RANKS, &second));
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

/* A callback says how often it was called, and how the work ended. */
struct note {
  atomic_int calls;
  int status;
  int allowed;
};

static void note_end(void* context, int status) {
  struct note* const note = context;
  note->status = status;
  atomic_fetch_add(&note->calls, 1);
}

static void wait_for_note(struct note* note) {
  const struct timespec pause = {0, 1000 * 1000};
  while (atomic_load(&note->calls) == 0) nanosleep(&pause, NULL);
}

static void a_callback_tells_the_end(void) {
  struct note early = {0};
  struct note late = {0};
  struct note failed = {0};
  struct held held;
  ronde_work work = NULL;
  double value = 0;
  hold(&held, "with a callback");
  if (own_rank() != 0) CHECK_OK(ronde_work_on_done(held.work, note_end, &early));
  CHECK(atomic_load(&early.calls) == 0);
  barrier_of(RONDE_ALL_RANKS);
  release(&held, "with a callback");
  if (own_rank() == 0) CHECK_OK(ronde_work_on_done(held.work, note_end, &early));
  CHECK_OK(ronde_work_wait(held.work, -1));
  wait_for_note(&early);
  CHECK(early.status == RONDE_OK);
  CHECK_OK(ronde_work_on_done(held.work, note_end, &late)); /* at once */
  CHECK(atomic_load(&late.calls) == 1);
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "fn is NULL", ronde_work_on_done(held.work, NULL, NULL));
  CHECK_OK(ronde_work_free(held.work));
  /* An error is told, too. */
  CHECK_OK(start_broadcast("no such root", &value, 1, 9, RONDE_ALL_RANKS, &work));
  CHECK_OK(ronde_work_on_done(work, note_end, &failed));
  CHECK_FAILS(RONDE_E_USAGE, "root 9 is out of range", finish(work));
  wait_for_note(&failed);
  CHECK(failed.status == RONDE_E_USAGE);
}

static void a_pending_work_may_be_freed(void) {
  struct note note = {0};
  struct held held;
  hold(&held, "freed early");
  if (own_rank() != 0) {
    CHECK_OK(ronde_work_on_done(held.work, note_end, &note));
    CHECK_OK(ronde_work_free(held.work));
    CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed before", ronde_work_wait(held.work, -1));
  }
  barrier_of(RONDE_ALL_RANKS);
  release(&held, "freed early");
  if (own_rank() == 0) {
    CHECK_OK(finish(held.work));
  } else {
    wait_for_note(&note); /* from now on the buffer is the caller's again */
    CHECK(note.status == RONDE_OK);
  }
  CHECK(held.value == all_ranks());
  check_job_goes_on();
}

/* Of an owned result nobody sees the end: its memory stays until then. */
static void an_owned_result_may_be_freed_early(void) {
  static const double values[4] = {1, 2, 3, 4};
  for (int i = 0; i < 20; ++i) {
    ronde_work work = NULL;
    CHECK_OK(start_gather(NULL, values, 4, RONDE_ALL_RANKS, &work));
    CHECK_OK(ronde_work_free(work));
  }
  check_job_goes_on();
}

struct inside {
  struct note note;
  ronde_work waited_for;
  double value;
  ronde_work submitted;
  int status_of_wait;
  int status_of_set;
  int status_of_submit;
};

static void call_from_inside(void* context, int status) {
  struct inside* const inside = context;
  uint32_t set = 0;
  const int rank = 0;
  inside->status_of_wait = ronde_work_wait(inside->waited_for, -1);
  inside->status_of_set = ronde_process_set_add(&rank, 1, &set);
  inside->status_of_submit =
      start_sum("from a callback", &inside->value, 1, RONDE_ALL_RANKS, &inside->submitted);
  note_end(&inside->note, status);
}

static void a_callback_submits_but_does_not_block(void) {
  struct inside inside = {.value = 1};
  struct held held;
  struct held other;
  hold(&held, "before the callback");
  hold(&other, "waited for in the callback");
  inside.waited_for = other.work;
  if (own_rank() != 0) CHECK_OK(ronde_work_on_done(held.work, call_from_inside, &inside));
  barrier_of(RONDE_ALL_RANKS);
  release(&held, "before the callback");
  if (own_rank() != 0) {
    wait_for_note(&inside.note);
    CHECK(inside.status_of_wait == RONDE_E_USAGE);
    CHECK(inside.status_of_set == RONDE_E_USAGE);
    CHECK(inside.status_of_submit == RONDE_OK);
  } else {
    CHECK_OK(start_sum("from a callback", &inside.value, 1, RONDE_ALL_RANKS, &inside.submitted));
  }
  CHECK_OK(finish(held.work));
  CHECK_OK(finish(inside.submitted));
  CHECK(inside.value == all_ranks());
  release(&other, "waited for in the callback");
  CHECK_OK(finish(other.work));
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

static void several_threads_wait_and_another_frees(void) {
  enum { kThreadCount = 3 };
  struct waiter waiters[kThreadCount];
  struct held held;
  CHECK(sem_init(&about_to_wait, 0, 0) == 0);
  hold(&held, "waited for by several");
  if (own_rank() != 0) {
    for (int i = 0; i < kThreadCount; ++i) {
      waiters[i].held = &held;
      CHECK(pthread_create(&waiters[i].thread, NULL, wait_elsewhere, &waiters[i]) == 0);
    }
    for (int i = 0; i < kThreadCount; ++i) CHECK(sem_wait(&about_to_wait) == 0);
    CHECK(ronde_work_wait(held.work, 0.05) == RONDE_E_TIMEOUT);
    CHECK_OK(ronde_work_free(held.work));
  }
  barrier_of(RONDE_ALL_RANKS);
  release(&held, "waited for by several");
  if (own_rank() == 0) {
    CHECK_OK(finish(held.work));
  } else {
    /* Who was held up for so long before it waited learns that there is no such work. */
    for (int i = 0; i < kThreadCount; ++i) {
      CHECK(pthread_join(waiters[i].thread, NULL) == 0);
      CHECK(waiters[i].status == RONDE_OK || waiters[i].status == RONDE_E_INVALID_HANDLE);
    }
  }
  check_job_goes_on(); /* now the freed one is done as well */
  CHECK(held.value == all_ranks());
}

static void persistent_operations_are_started_again_and_again(void) {
  const int64_t two = 2;
  double values[2];
  double others[2];
  double result[2];
  ronde_tensor in = tensor_of(values, &two, 1, RONDE_F64);
  ronde_tensor out = tensor_of(result, &two, 1, RONDE_F64);
  const ronde_operation_options options = named("persistent", RONDE_ALL_RANKS);
  const ronde_operation_options of_root = named("persistent broadcast", RONDE_ALL_RANKS);
  ronde_persistent sum = NULL;
  ronde_persistent broadcast = NULL;
  CHECK_OK(ronde_allreduce_init(&in, &out, &options, &sum));
  CHECK_OK(ronde_broadcast_init(NULL, &in, &of_root, &broadcast));
  for (int step = 0; step < 10; ++step) {
    ronde_work work = NULL;
    values[0] = values[1] = own_rank() + step;
    others[0] = others[1] = 1;
    CHECK_OK(ronde_start(sum, NULL, NULL, &work));
    CHECK_OK(finish(work));
    CHECK(result[1] == all_ranks() * (all_ranks() - 1) / 2. + all_ranks() * step);
    CHECK_OK(ronde_start(sum, others, others, &work));
    CHECK_OK(finish(work));
    CHECK(others[1] == all_ranks());
    CHECK_OK(ronde_start(broadcast, NULL, NULL, &work));
    CHECK_OK(finish(work));
    CHECK(values[1] == step);
  }
  CHECK_OK(ronde_persistent_free(broadcast));
  CHECK_OK(ronde_persistent_free(sum));
}

static void a_persistent_operation_is_refused_what_it_cannot_do(void) {
  struct held held;
  ronde_persistent sum = NULL;
  ronde_work work = NULL;
  double value = 1;
  const int64_t one = 1;
  ronde_tensor tensor = tensor_of(&value, &one, 1, RONDE_F64);
  const ronde_operation_options options = named("started twice", RONDE_ALL_RANKS);
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "persistent is NULL",
              ronde_allreduce_init(&tensor, &tensor, &options, NULL));
  CHECK_OK(ronde_allreduce_init(&tensor, &tensor, &options, &sum));
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "work is NULL", ronde_start(sum, NULL, NULL, NULL));
  CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, "in place", ronde_start(sum, NULL, &value, &work));
  CHECK_OK(ronde_group_begin(RONDE_ALL_RANKS));
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "part of a group", ronde_start(sum, NULL, NULL, &work));
  CHECK_OK(ronde_group_cancel());
  hold(&held, "started twice");
  if (own_rank() != 0) {
    CHECK_FAILS(RONDE_E_DUPLICATE_NAME, "still in flight", ronde_start(sum, NULL, NULL, &work));
    CHECK(work == NULL);
  }
  barrier_of(RONDE_ALL_RANKS);
  release(&held, "started twice");
  CHECK_OK(finish(held.work));
  CHECK_OK(ronde_start(sum, NULL, NULL, &work));
  CHECK_OK(ronde_persistent_free(sum)); /* it goes on */
  CHECK_OK(finish(work));
  CHECK(value == all_ranks());
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed before", ronde_start(sum, NULL, NULL, &work));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed before", ronde_persistent_free(sum));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "NULL", ronde_start(NULL, NULL, NULL, &work));
  CHECK_OK(ronde_persistent_free(NULL));
  check_job_goes_on();
}

const struct test_case kWorks[] = {
    {"persistent operations are started again and again",
     persistent_operations_are_started_again_and_again, ""},
    {"a persistent operation is refused what it cannot do",
     a_persistent_operation_is_refused_what_it_cannot_do, ""},
    {"a wait that ends early harms nothing", a_wait_that_ends_early_harms_nothing, ""},
    {"results of other kinds are refused", results_of_other_kinds_are_refused, ""},
    {"a work is freed once", a_work_is_freed_once, ""},
    {"a callback tells the end", a_callback_tells_the_end, ""},
    {"a pending work may be freed", a_pending_work_may_be_freed, ""},
    {"an owned result may be freed early", an_owned_result_may_be_freed_early, ""},
    {"a callback submits but does not block", a_callback_submits_but_does_not_block, "[n2][n3]"},
    {"several threads wait and another frees", several_threads_wait_and_another_frees, "[n2][n3]"},
    CASES_END,
};
