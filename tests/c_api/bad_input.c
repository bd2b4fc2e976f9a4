/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with a call, seen by its rank alone or by all together. The job goes on. */
#include <math.h>

#include "rank.h"

enum { kSet = RONDE_ALL_RANKS, kCpu = RONDE_CPU };

static double values[64];
static const int64_t kShape[9] = {2, 1, 1, 1, 1, 1, 1, 1, 1};
static ronde_work refused;

/* Every argument of every operation that the rank itself can see to be wrong. */
static void arguments_of_one_call(void) {
  void* const v = values;
  void* const stream = values;
#define INVALID(part, call) CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, part, call)
#define ALLREDUCE(in, out, dtype, op, device, stream, work) \
  ronde_allreduce("x", in, out, 2, dtype, op, 1, 1, device, stream, kSet, work)
  INVALID("work is NULL", ALLREDUCE(v, v, RONDE_F64, RONDE_SUM, kCpu, NULL, NULL));
  INVALID("in is NULL", ALLREDUCE(NULL, v, RONDE_F64, RONDE_SUM, kCpu, NULL, &refused));
  INVALID("out is NULL", ALLREDUCE(v, NULL, RONDE_F64, RONDE_SUM, kCpu, NULL, &refused));
  INVALID("dtype", ALLREDUCE(v, v, 10, RONDE_SUM, kCpu, NULL, &refused));
  INVALID("dtype", ALLREDUCE(v, v, -1, RONDE_SUM, kCpu, NULL, &refused));
  INVALID("op", ALLREDUCE(v, v, RONDE_F64, RONDE_ADASUM + 1, kCpu, NULL, &refused));
  INVALID("op", ALLREDUCE(v, v, RONDE_F64, -1, kCpu, NULL, &refused));
  INVALID("device", ALLREDUCE(v, v, RONDE_F64, RONDE_SUM, -2, NULL, &refused));
  INVALID("stream", ALLREDUCE(v, v, RONDE_F64, RONDE_SUM, kCpu, stream, &refused));
#define BROADCAST(buffer, dtype, device, stream, work) \
  ronde_broadcast("x", buffer, 2, dtype, 0, device, stream, kSet, work)
  INVALID("work is NULL", BROADCAST(v, RONDE_F64, kCpu, NULL, NULL));
  INVALID("buffer is NULL", BROADCAST(NULL, RONDE_F64, kCpu, NULL, &refused));
  INVALID("dtype", BROADCAST(v, 99, kCpu, NULL, &refused));
  INVALID("stream", BROADCAST(v, RONDE_F64, kCpu, stream, &refused));
#define ALLGATHER(in, shape, dims, dtype, device, work) \
  ronde_allgather("x", in, shape, dims, dtype, NULL, device, NULL, kSet, work)
  INVALID("work is NULL", ALLGATHER(v, kShape, 1, RONDE_F64, kCpu, NULL));
  INVALID("in is NULL", ALLGATHER(NULL, kShape, 1, RONDE_F64, kCpu, &refused));
  INVALID("shape is NULL", ALLGATHER(v, NULL, 1, RONDE_F64, kCpu, &refused));
  INVALID("dims", ALLGATHER(v, kShape, -1, RONDE_F64, kCpu, &refused));
  INVALID("dims", ALLGATHER(v, kShape, RONDE_MAX_DIMS + 1, RONDE_F64, kCpu, &refused));
  INVALID("dtype", ALLGATHER(v, kShape, 1, 10, kCpu, &refused));
#define ALLTOALL(in, shape, device, work) \
  ronde_alltoall("x", in, shape, 1, RONDE_F64, NULL, NULL, device, NULL, kSet, work)
  INVALID("work is NULL", ALLTOALL(v, kShape, kCpu, NULL));
  INVALID("in is NULL", ALLTOALL(NULL, kShape, kCpu, &refused));
  INVALID("shape is NULL", ALLTOALL(v, NULL, kCpu, &refused));
#define REDUCESCATTER(in, shape, op, device, work) \
  ronde_reducescatter("x", in, shape, 1, RONDE_F64, op, 1, 1, NULL, device, NULL, kSet, work)
  INVALID("work is NULL", REDUCESCATTER(v, kShape, RONDE_SUM, kCpu, NULL));
  INVALID("in is NULL", REDUCESCATTER(NULL, kShape, RONDE_SUM, kCpu, &refused));
  INVALID("shape is NULL", REDUCESCATTER(v, NULL, RONDE_SUM, kCpu, &refused));
  INVALID("op", REDUCESCATTER(v, kShape, 7, kCpu, &refused));
#define MESSAGE(call, buffer, device, work) \
  call(buffer, 2, RONDE_F64, 0, 0, device, NULL, kSet, work)
  INVALID("work is NULL", MESSAGE(ronde_send, v, kCpu, NULL));
  INVALID("buffer is NULL", MESSAGE(ronde_send, NULL, kCpu, &refused));
  INVALID("work is NULL", MESSAGE(ronde_recv, v, kCpu, NULL));
  INVALID("buffer is NULL", MESSAGE(ronde_recv, NULL, kCpu, &refused));
  INVALID("work is NULL", ronde_barrier(kSet, NULL));
  INVALID("work is NULL", ronde_join(kSet, NULL));
  CHECK(refused == NULL);
  check_job_goes_on();
}

static void arguments_of_other_functions(void) {
  char small[8];
  ronde_work work = NULL;
  INVALID("NULL", ronde_rank(kSet, NULL));
  INVALID("NULL", ronde_size(kSet, NULL));
  INVALID("NULL", ronde_local_rank(NULL));
  INVALID("NULL", ronde_local_size(NULL));
  INVALID("NULL", ronde_cross_rank(NULL));
  INVALID("NULL", ronde_cross_size(NULL));
  INVALID("NULL", ronde_is_homogeneous(NULL));
  INVALID("NULL", ronde_process_set_included(kSet, NULL));
  INVALID("NULL", ronde_abort(NULL));
  INVALID("NULL", ronde_stats_json(NULL, 10));
  INVALID("NULL", ronde_timeline_start(NULL, 0));
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "no timeline", ronde_timeline_start("/tmp/timeline", 0));
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "no timeline", ronde_timeline_stop());
  CHECK_FAILS(RONDE_E_TOO_SMALL, "bytes, size is 8", ronde_stats_json(small, sizeof(small)));
  CHECK_OK(ronde_barrier(kSet, &work));
  INVALID("NULL", ronde_work_done(work, NULL));
  INVALID("not a number", ronde_work_wait(work, NAN));
  INVALID("NULL", ronde_work_splits(work, NULL));
  INVALID("NULL", ronde_work_source(work, NULL));
  INVALID("NULL", ronde_work_last_rank(work, NULL));
  CHECK_OK(ronde_work_wait_stream(work, small)); /* no buffers on a GPU: any stream may go on */
  CHECK_OK(finish(work));
  check_job_goes_on();
}

/* Of buffers on a GPU that is not there, whether this machine has others or not. */
static void check_no_such_gpu(int status, ronde_work work) {
  if (status == RONDE_OK) {
    CHECK_FAILS(RONDE_E_USAGE, "no backend for cuda buffers", ronde_work_wait_stream(work, values));
    CHECK_FAILS(RONDE_E_USAGE, "no backend for cuda buffers", finish(work));
  } else {
    CHECK(status == RONDE_E_USAGE);
  }
}

static void buffers_on_a_gpu_that_is_not_there(void) {
  enum { kNoGpu = 1000 };
  void* const v = values;
  ronde_work work = NULL;
  int status = ALLREDUCE(v, v, RONDE_F64, RONDE_SUM, kNoGpu, v, &work);
  check_no_such_gpu(status, work);
  status = BROADCAST(v, RONDE_F64, kNoGpu, NULL, &work);
  check_no_such_gpu(status, work);
  status = ALLGATHER(v, kShape, 1, RONDE_F64, kNoGpu, &work);
  check_no_such_gpu(status, work);
  status = REDUCESCATTER(v, kShape, RONDE_SUM, kNoGpu, &work);
  check_no_such_gpu(status, work);
  if (all_ranks() == 2) {
    const int peer = 1 - own_rank();
    status = own_rank() == 0 ? ronde_send(v, 2, RONDE_F64, peer, 0, kNoGpu, NULL, kSet, &work)
                             : ronde_recv(v, 2, RONDE_F64, peer, 0, kNoGpu, NULL, kSet, &work);
    check_no_such_gpu(status, work);
  }
  check_job_goes_on();
}

/* What a rank sees of its own, in the engine. */
static void uses_that_make_no_sense(void) {
  double value = 1;
  ronde_work work = NULL;
  if (all_ranks() > 1 && own_rank() == 0) {
    CHECK_OK(start_sum("in flight", &value, 1, kSet, &work));
    CHECK_FAILS(RONDE_E_USAGE, "allreduce 'in flight' is still in flight",
                start_sum("in flight", values, 1, kSet, &refused));
  }
  barrier_of(kSet);
  if (work == NULL) CHECK_OK(start_sum("in flight", &value, 1, kSet, &work));
  CHECK_OK(finish(work));
  CHECK_FAILS(RONDE_E_USAGE, "process set 44", start_sum("x", values, 1, 44, &refused));
  CHECK_FAILS(RONDE_E_USAGE, "this rank itself",
              ronde_recv(values, 1, RONDE_F64, own_rank(), 0, kCpu, NULL, kSet, &refused));
  CHECK(ronde_send(values, 1, RONDE_F64, RONDE_ANY, 0, kCpu, NULL, kSet, &refused) ==
        RONDE_E_USAGE);
  CHECK(ronde_send(values, 1, RONDE_F64, own_rank() == 0, -1, kCpu, NULL, kSet, &refused) ==
        RONDE_E_USAGE);
  CHECK_FAILS(RONDE_E_USAGE, "peer -2 is out of range: there are ranks 0 to",
              ronde_recv(values, 1, RONDE_F64, -2, 0, kCpu, NULL, kSet, &refused));
  CHECK_LAST_ERROR(", or RONDE_ANY");
  CHECK_FAILS(RONDE_E_USAGE, ", or RONDE_ANY",
              ronde_recv(values, 1, RONDE_F64, 9, 0, kCpu, NULL, kSet, &refused));
  CHECK(refused == NULL);
  /* In a group the engine looks at its end. */
  ronde_work group = NULL;
  CHECK_OK(ronde_group_begin(kSet));
  CHECK_OK(ronde_allreduce("x", values, values, 1, RONDE_F64, RONDE_SUM, NAN, 1, kCpu, NULL, kSet,
                           &work));
  CHECK_FAILS(RONDE_E_USAGE, "NaN", ronde_group_end(&group));
  CHECK_FAILS(RONDE_E_USAGE, "NaN", finish(work));
  CHECK(group == NULL);
  check_job_goes_on();
}

/* One of the ranks is mistaken, and all are told so by the work. */

static int is_mistaken(void) {
  return own_rank() == all_ranks() - 1;
}

static void expect_refusal(int started, const char* part, ronde_work work) {
  CHECK_OK(started);
  CHECK_FAILS(RONDE_E_USAGE, part, finish(work));
  check_job_goes_on();
}

static void one_rank_is_mistaken(void) {
  const int bad = is_mistaken();
  const int64_t even[] = {all_ranks()};
  const int64_t extent[] = {bad ? -1 : 1};
  int64_t splits[8] = {0};
  ronde_work work = NULL;
  int status = start_sum("count", values, bad ? -3 : 1, kSet, &work);
  expect_refusal(status, "allreduce 'count'", work);
  status = start_sum("large", values, bad ? INT64_MAX : 1, kSet, &work);
  expect_refusal(status, "allreduce 'large'", work);
  status = ronde_allgather("extent", values, extent, 1, RONDE_F64, NULL, kCpu, NULL, kSet, &work);
  expect_refusal(status, "allgather 'extent'", work);
  splits[0] = all_ranks() + bad;
  status =
      ronde_alltoall("split", values, even, 1, RONDE_F64, splits, NULL, kCpu, NULL, kSet, &work);
  expect_refusal(status, "do not add up to the first dimension", work);
}

static void ranks_differ(void) {
  const int bad = is_mistaken();
  const int64_t wide[] = {2, 3};
  ronde_work work = NULL;
  int status = start_sum("count", values, bad ? 3 : 1, kSet, &work);
  expect_refusal(status, "differs between ranks", work);
  status = ronde_allreduce("dtype", values, values, 1, bad ? RONDE_F32 : RONDE_F64, RONDE_SUM, 1, 1,
                           kCpu, NULL, kSet, &work);
  expect_refusal(status, "allreduce 'dtype' differs between ranks", work);
  status = ronde_reducescatter(NULL, values, wide, bad ? 1 : 2, RONDE_F64, RONDE_SUM, 1, 1, NULL,
                               kCpu, NULL, kSet, &work);
  expect_refusal(status, "without a name differs between ranks", work);
  if (own_rank() < 2) {
    status = own_rank() == 0 ? ronde_send(values, 2, RONDE_F64, 1, 0, kCpu, NULL, kSet, &work)
                             : ronde_recv(values, 1, RONDE_F64, 0, 0, kCpu, NULL, kSet, &work);
    CHECK_OK(status);
    CHECK_FAILS(RONDE_E_USAGE, "the message from rank 0 to rank 1", finish(work));
  }
  check_job_goes_on();
}

static void all_ask_for_what_there_is_not(void) {
  ronde_work work = NULL;
  int status = ronde_broadcast("far", values, 1, RONDE_F64, 9, kCpu, NULL, kSet, &work);
  expect_refusal(status, "root 9 is out of range", work);
  status = ronde_allreduce("flags", values, values, 1, RONDE_BOOL, RONDE_AVERAGE, 1, 1, kCpu, NULL,
                           kSet, &work);
  expect_refusal(status, "bools have no average", work);
}

const struct test_case kBadInput[] = {
    {"arguments of one call", arguments_of_one_call, ""},
    {"arguments of other functions", arguments_of_other_functions, ""},
    {"buffers on a gpu that is not there", buffers_on_a_gpu_that_is_not_there, ""},
    {"uses that make no sense", uses_that_make_no_sense, ""},
    {"one rank is mistaken", one_rank_is_mistaken, ""},
    {"ranks differ", ranks_differ, "[n2][n3]"},
    {"all ask for what there is not", all_ask_for_what_there_is_not, ""},
    CASES_END,
};
