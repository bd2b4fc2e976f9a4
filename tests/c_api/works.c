/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a work. */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "check.h"

#define SUITE "works"

/* A sum that is not done before rank 0 starts it, which it does last. */
struct held {
  double value;
  ronde_work work;
};

static void start_if(int wanted, struct held* held) {
  if (wanted) CHECK_OK(start_sum("held", &held->value, 1, kSet, &held->work));
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

CASE(a_wait_and_its_end) {
  struct note early = {0};
  struct note late = {0};
  struct note failed = {0};
  struct held held = {1, NULL};
  int done = -1;
  start_if(own_rank() != 0, &held);
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
  start_if(own_rank() == 0, &held);
  CHECK_OK(ronde_work_wait(held.work, 1e300)); /* for ever */
  CHECK(held.value == all_ranks());
  CHECK_OK(ronde_work_done(held.work, &done));
  CHECK(done == 1);
  CHECK_OK(ronde_work_wait(held.work, 0)); /* again */
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

CASE(a_work_is_freed_once) {
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
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "never was one", ronde_work_wait((ronde_work)&value, -1));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "NULL", ronde_work_wait(NULL, -1));
  CHECK_OK(ronde_work_free(NULL));
  CHECK_OK(finish(second));
  CHECK(value == all_ranks() * all_ranks());
}

static sem_t about_to_wait;

/* A thread that came to wait after the handle was freed gets RONDE_E_INVALID_HANDLE. */
static void* wait_elsewhere(void* context) {
  const struct held* const held = context;
  const ronde_work work = held->work;
  CHECK(sem_post(&about_to_wait) == 0);
  const int status = ronde_work_wait(work, -1);
  CHECK(status == RONDE_E_INVALID_HANDLE || (status == RONDE_OK && held->value == all_ranks()));
  return NULL;
}

/* While a thread waits for it. The buffer is the caller's again once the callback was called. */
CASE(a_pending_work_may_be_freed) {
  pthread_t waiter;
  struct note note = {0};
  struct held held = {1, NULL};
  const int waits = own_rank() != 0;
  CHECK(sem_init(&about_to_wait, 0, 0) == 0);
  start_if(waits, &held);
  if (waits) {
    CHECK(pthread_create(&waiter, NULL, wait_elsewhere, &held) == 0);
    CHECK(sem_wait(&about_to_wait) == 0);
    CHECK(ronde_work_wait(held.work, 0.05) == RONDE_E_TIMEOUT);
    CHECK_OK(ronde_work_on_done(held.work, note_end, &note));
    CHECK_OK(ronde_work_free(held.work));
  }
  barrier_of(kSet);
  start_if(!waits, &held);
  if (waits) wait_for_note(&note, RONDE_OK);
  if (!waits) CHECK_OK(finish(held.work));
  CHECK(held.value == all_ranks());
  if (waits) CHECK(pthread_join(waiter, NULL) == 0);
  /* The memory of an owned result stays until the operation is done, of which nobody hears. */
  CHECK_OK(start_gather(NULL, &held.value, 1, kSet, &held.work));
  CHECK_OK(ronde_work_free(held.work));
  check_job_continues();
}

struct inside {
  struct note note;
  double value;
  ronde_work submitted;
};

static void call_from_inside(void* context, int status) {
  struct inside* const inside = context;
  uint32_t set = 0;
  const int rank = 0;
  CHECK(ronde_process_set_add(&rank, 1, &set) == RONDE_E_USAGE);
  CHECK_OK(start_sum("from a callback", &inside->value, 1, kSet, &inside->submitted));
  CHECK(ronde_work_wait(inside->submitted, -1) == RONDE_E_USAGE); /* rank 0 has not started it */
  note_end(&inside->note, status);
}

CASE_ON(2, a_callback_submits_but_does_not_block) {
  struct inside inside = {.value = 1};
  struct held held = {1, NULL};
  const int is_first = own_rank() == 0;
  start_if(!is_first, &held);
  if (!is_first) CHECK_OK(ronde_work_on_done(held.work, call_from_inside, &inside));
  barrier_of(kSet);
  start_if(is_first, &held);
  if (!is_first) wait_for_note(&inside.note, RONDE_OK);
  barrier_of(kSet);
  if (is_first) CHECK_OK(start_sum("from a callback", &inside.value, 1, kSet, &inside.submitted));
  CHECK_OK(finish(held.work));
  CHECK_OK(finish(inside.submitted));
  CHECK(inside.value == all_ranks());
}

CASE(persistent_operations) {
  const int64_t one = 1;
  double value = 0;
  double other = 1;
  ronde_tensor tensor = tensor_of(&value, &one, 1, RONDE_F64);
  const ronde_operation_options options = named("persistent", kSet);
  ronde_persistent sum = NULL;
  ronde_persistent broadcast = NULL;
  ronde_work work = NULL;
  CHECK_INVALID("persistent is NULL", ronde_allreduce_init(&tensor, &tensor, &options, NULL));
  CHECK_OK(ronde_allreduce_init(&tensor, &tensor, &options, &sum));
  CHECK_OK(ronde_broadcast_init(NULL, &tensor, NULL, &broadcast));
  for (int step = 0; step < 2; ++step) {
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
  CHECK_OK(ronde_start(sum, NULL, NULL, &work));
  CHECK_OK(ronde_persistent_free(sum)); /* the operation in flight continues */
  CHECK_OK(finish(work));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed before", ronde_start(sum, NULL, NULL, &work));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "freed before", ronde_persistent_free(sum));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "NULL", ronde_start(NULL, NULL, NULL, &work));
  CHECK_OK(ronde_persistent_free(NULL));
}

static int is_readable(ronde_queue queue) {
  struct pollfd asked = {.events = POLLIN};
  CHECK_OK(ronde_queue_descriptor(queue, &asked.fd));
  return poll(&asked, 1, 0) == 1;
}

CASE(a_queue_of_works) {
  ronde_operation_options options = named(NULL, kSet);
  struct held held = {1, NULL};
  double value = 1;
  uint64_t token = 0;
  ronde_queue queue = NULL;
  ronde_work member = NULL;
  ronde_work group = NULL;
  ronde_work failed = NULL;
  CHECK_OK(ronde_queue_make(&queue));
  start_if(own_rank() != 0, &held);
  if (own_rank() != 0) {
    CHECK_OK(ronde_queue_add(queue, held.work, 7));
    CHECK_FAILS(RONDE_E_TIMEOUT, "done yet", ronde_queue_next(queue, 0, &token));
    CHECK_FAILS(RONDE_E_TIMEOUT, "done yet", ronde_queue_next(queue, 0.01, &token));
    CHECK(!is_readable(queue) && token == 0);
  }
  barrier_of(kSet);
  start_if(own_rank() == 0, &held);
  if (own_rank() == 0) CHECK_OK(ronde_queue_add(queue, held.work, 7));
  CHECK_OK(ronde_work_free(held.work)); /* the token comes all the same */
  CHECK_OK(ronde_queue_next(queue, -1, &token));
  CHECK(token == 7 && held.value == all_ranks());
  /* A work of a group that is open, one that fails, and all of a group. */
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(start_sum("in a group", &value, 1, kSet, &member));
  CHECK_OK(ronde_queue_add(queue, member, 8));
  CHECK_OK(ronde_group_end(&group));
  CHECK_OK(ronde_queue_next(queue, 60, &token));
  CHECK(token == 8);
  CHECK_OK(ronde_queue_add(queue, group, 9));
  CHECK_OK(ronde_queue_next(queue, 60, &token));
  CHECK(token == 9 && !is_readable(queue));
  options.root = 9;
  ronde_tensor tensor = tensor_of(&value, NULL, 0, RONDE_F64);
  CHECK_OK(ronde_broadcast(&tensor, &tensor, &options, &failed));
  CHECK_OK(ronde_queue_add(queue, failed, UINT64_MAX));
  CHECK_OK(ronde_queue_next(queue, -1, &token));
  CHECK(token == UINT64_MAX);
  CHECK_FAILS(RONDE_E_USAGE, "root 9 is out of range", finish(failed));
  CHECK_OK(finish(member));
  CHECK_OK(finish(group));
  CHECK_OK(ronde_queue_free(queue));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "the queue was freed before", ronde_queue_free(queue));
  CHECK_FAILS(RONDE_E_INVALID_HANDLE, "NULL", ronde_queue_next(NULL, 0, &token));
  CHECK_OK(ronde_queue_free(NULL));
}

static void handle_nothing(int signal_number) {
  (void)signal_number;
}

CASE_ALONE(a_signal_ends_the_wait_in_a_queue) {
  const struct itimerspec often = {{0, 1000 * 1000}, {0, 1000 * 1000}};
  const struct sigaction handler = {.sa_handler = handle_nothing, .sa_flags = SA_RESTART};
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
  timer_t timer;
  uint64_t token = 0;
  ronde_queue queue = NULL;
  CHECK(sigaction(SIGUSR1, &handler, NULL) == 0);
  CHECK_OK(ronde_queue_make(&queue));
  CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
  CHECK(timer_settime(timer, 0, &often, NULL) == 0);
  CHECK_FAILS(RONDE_E_INTERRUPTED, "signal", ronde_queue_next(queue, -1, &token));
  CHECK_FAILS(RONDE_E_INTERRUPTED, "signal", ronde_queue_next(queue, 60, &token));
  CHECK(timer_delete(timer) == 0);
  CHECK_OK(ronde_queue_free(queue));
}

static void* submit_without_a_name(void* value) {
  ronde_operation_options options = named(NULL, kSet);
  const ronde_tensor tensor = tensor_of(value, NULL, 0, RONDE_F64);
  ronde_tensor out = tensor;
  ronde_work work = NULL;
  CHECK_FAILS(RONDE_E_USAGE, "another thread", ronde_allreduce(&tensor, &out, &options, &work));
  options.caller_orders = 1;
  CHECK_RUN(ronde_allreduce(&tensor, &out, &options, &work), work);
  return NULL;
}

CASE(calls_without_names_that_the_program_orders) {
  double value = 1;
  pthread_t other;
  barrier_of(kSet);
  CHECK(pthread_create(&other, NULL, submit_without_a_name, &value) == 0);
  CHECK(pthread_join(other, NULL) == 0);
  barrier_of(kSet);
  CHECK(value == all_ranks());
}
