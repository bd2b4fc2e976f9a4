/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are refused, by their rank alone or by all together. The job continues. */
#include <math.h>

#include "check.h"

#define SUITE "bad_input"

static double values[64];
static const int64_t kShape[RONDE_MAX_DIMS + 1] = {2, 1, 1, 1, 1, 1, 1, 1, 1};
static ronde_work refused;

static const struct operation {
  start_fn start;
  int has_in;
  int has_out;
  int may_own; /* the work the result */
} kOperations[] = {
    {ronde_allreduce, 1, 1, 0}, {ronde_broadcast, 1, 1, 0},     {ronde_allgather, 1, 1, 1},
    {ronde_alltoall, 1, 1, 1},  {ronde_reducescatter, 1, 1, 1}, {ronde_send, 1, 0, 0},
    {ronde_recv, 0, 1, 0},
};
enum { kOperationCount = sizeof(kOperations) / sizeof(kOperations[0]) };

/* Two numbers. */
static ronde_tensor some(void) {
  return tensor_of(values, kShape, 1, RONDE_F64);
}

static void all_refuse(const char* part, ronde_tensor tensor, ronde_operation_options options) {
  for (int i = 0; i < kOperationCount; ++i) {
    const struct operation* const one = &kOperations[i];
    CHECK_INVALID(part, one->start(one->has_in ? &tensor : NULL, one->has_out ? &tensor : NULL,
                                   &options, &refused));
    CHECK(refused == NULL);
  }
}

CASE(bad_tensors_and_options) {
  const ronde_operation_options usual = RONDE_OPERATION_OPTIONS_INIT;
  const ronde_tensor unset = RONDE_TENSOR_INIT;
#define BAD_TENSOR(part, field, value) \
  do {                                 \
    ronde_tensor tensor = some();      \
    tensor.field = (value);            \
    all_refuse(part, tensor, usual);   \
  } while (0)
#define BAD_OPTION(part, field, value)       \
  do {                                       \
    ronde_operation_options options = usual; \
    options.field = (value);                 \
    all_refuse(part, some(), options);       \
  } while (0)
  BAD_TENSOR("struct_size of a ronde_tensor", struct_size, 0);
  BAD_TENSOR("data is NULL", data, NULL);
  BAD_TENSOR("shape is NULL", shape, NULL);
  BAD_TENSOR("dims", dims, -1);
  BAD_TENSOR("dims", dims, RONDE_MAX_DIMS + 1);
  BAD_TENSOR("dtype", dtype, RONDE_BOOL + 1);
  BAD_TENSOR("dtype", dtype, RONDE_NO_DTYPE);
  BAD_TENSOR("device", device, -2);
  BAD_TENSOR("stream", stream, values);
  BAD_TENSOR("capacity", capacity, -2);
  all_refuse("dtype", unset, usual);
  BAD_OPTION("struct_size of a ronde_operation_options", struct_size, 0);
  BAD_OPTION("op is none", op, RONDE_ADASUM + 1);
  BAD_OPTION("op is none", op, -1);
  BAD_OPTION("wire_dtype is none", wire_dtype, RONDE_BOOL + 1);
  BAD_OPTION("wire_dtype is none", wire_dtype, -2);
  BAD_OPTION("splits and split_count", splits, kShape);
  BAD_OPTION("splits and split_count", split_count, 2);
  BAD_OPTION("splits and split_count", split_count, -1);
  BAD_OPTION("timeout_s", timeout_s, -1);
  BAD_OPTION("timeout_s", timeout_s, NAN);
  check_job_continues();
}

CASE(arguments_that_are_missing_or_too_many) {
  for (int i = 0; i < kOperationCount; ++i) {
    const struct operation* const one = &kOperations[i];
    ronde_tensor tensor = some();
    ronde_tensor empty = room_for(NULL, 2, RONDE_F64);
    ronde_tensor other = room_for(values, 2, RONDE_I64);
    ronde_tensor* const in = one->has_in ? &tensor : NULL;
    ronde_tensor* const out = one->has_out ? &tensor : NULL;
    CHECK_INVALID("work is NULL", one->start(in, out, NULL, NULL));
    if (one->has_in && one->start != ronde_broadcast) {
      CHECK_INVALID("in is NULL", one->start(NULL, out, NULL, &refused));
    }
    if (!one->has_in) CHECK_INVALID("in is not NULL", one->start(&tensor, out, NULL, &refused));
    if (!one->has_out) CHECK_INVALID("out is not NULL", one->start(in, &tensor, NULL, &refused));
    if (!one->has_out) continue;
    if (!one->may_own) CHECK_INVALID("out is NULL", one->start(in, NULL, NULL, &refused));
    if (!one->has_in) continue;
    CHECK_INVALID("out->data is NULL", one->start(in, &empty, NULL, &refused));
    CHECK_INVALID("in and out differ", one->start(in, &other, NULL, &refused));
  }
  CHECK_INVALID("out is NULL", ronde_broadcast(NULL, NULL, NULL, &refused));
  CHECK_INVALID("work is NULL", ronde_barrier(NULL, NULL));
  CHECK_INVALID("work is NULL", ronde_join(kSet, NULL));
  CHECK(refused == NULL);
  check_job_continues();
}

CASE(arguments_of_other_functions) {
  char small[8];
  int number = 0;
  int64_t splits[8];
  ronde_work work = NULL;
  CHECK_INVALID("NULL", ronde_rank(kSet, NULL));
  CHECK_INVALID("NULL", ronde_size(kSet, NULL));
  for (int i = 0; i < kNumberCount; ++i) CHECK_INVALID("NULL", kNumbers[i](NULL));
  CHECK_INVALID("NULL", ronde_process_set_included(kSet, NULL));
  CHECK_INVALID("NULL", ronde_abort(NULL));
  CHECK_INVALID("NULL", ronde_stats_json(NULL, 10));
  CHECK_INVALID("NULL", ronde_timeline_start(NULL, 0));
  CHECK_FAILS(RONDE_E_USAGE, "no timeline", ronde_timeline_stop());
  CHECK_FAILS(RONDE_E_INTERNAL, "/proc/no/rank", ronde_timeline_start("/proc/no", 0));
  CHECK_OK(ronde_mark_step(8));
  CHECK_FAILS(RONDE_E_TOO_SMALL, "bytes, size is 8", ronde_stats_json(small, sizeof(small)));
  CHECK_OK(ronde_barrier(NULL, &work));
  CHECK_INVALID("NULL", ronde_work_done(work, NULL));
  CHECK_INVALID("not a number", ronde_work_wait(work, NAN));
  CHECK_INVALID("NULL", ronde_work_splits(work, NULL));
  CHECK_INVALID("NULL", ronde_work_source(work, NULL));
  CHECK_INVALID("NULL", ronde_work_last_rank(work, NULL));
  CHECK_INVALID("fn is NULL", ronde_work_on_done(work, NULL, NULL));
  CHECK_OK(ronde_work_wait_stream(work, small)); /* no buffers on a GPU: the stream is not used */
  CHECK_INVALID("no result", ronde_work_output(work, NULL, NULL, NULL, NULL));
  CHECK_INVALID("no alltoall", ronde_work_splits(work, splits));
  CHECK_INVALID("no recv", ronde_work_source(work, &number));
  CHECK_INVALID("no join", ronde_work_last_rank(work, &number));
  CHECK_OK(finish(work));
  check_job_continues();
}

/* Whether this machine has other GPUs or not. */
CASE(buffers_on_a_gpu_that_is_not_there) {
  ronde_tensor tensor = some();
  ronde_work work = NULL;
  tensor.device = 1000;
  tensor.stream = values;
  for (int i = 0; i < kOperationCount; ++i) {
    const struct operation* const one = &kOperations[i];
    if (!one->may_own) continue;
    CHECK_FAILS(RONDE_E_UNSUPPORTED, "out is NULL", one->start(&tensor, NULL, NULL, &work));
  }
  const int status = ronde_allreduce(&tensor, &tensor, NULL, &work);
  if (status == RONDE_OK) {
    CHECK_FAILS(RONDE_E_USAGE, "no backend for cuda buffers", ronde_work_wait_stream(work, values));
    CHECK_FAILS(RONDE_E_USAGE, "no backend for cuda buffers", finish(work));
  } else {
    CHECK(status == RONDE_E_USAGE);
  }
  check_job_continues();
}

/* What the engine refuses on this rank is the code of the call. */
CASE(uses_that_make_no_sense) {
  ronde_tensor one = tensor_of(values, NULL, 0, RONDE_F64);
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "process set 44", start_sum("x", values, 1, 44, &refused));
  CHECK_FAILS(RONDE_E_USAGE, "out of range", ronde_send(&one, NULL, NULL, &refused)); /* to any */
  options.peer = own_rank();
  CHECK_FAILS(RONDE_E_USAGE, "this rank itself", ronde_recv(NULL, &one, &options, &refused));
  options.tag = -1;
  CHECK_FAILS(RONDE_E_USAGE, "tag -1", ronde_send(&one, NULL, &options, &refused));
  options.tag = 0;
  for (int i = 0; i < 2; ++i) {
    options.peer = i == 0 ? -2 : 9;
    CHECK_FAILS(RONDE_E_USAGE, " is out of range: there are ranks 0 to",
                ronde_recv(NULL, &one, &options, &refused));
    CHECK_LAST_ERROR(", or RONDE_ANY");
  }
  CHECK(refused == NULL);
  check_job_continues();
}

/* What the ranks refuse is the code of the work on all of them. The engine gets extents that make
 * no sense as they are. */
CASE_ON(2, ranks_differ) {
  static const int64_t kWide[] = {2, 3};
  static const int64_t kWider[] = {2, 4};
  static const struct {
    start_fn start;
    const int64_t* shape;
    int dims, dtype;
  } kOdd[] = {{ronde_reducescatter, kWide, 1, RONDE_F64},
              {ronde_broadcast, kWide, 1, RONDE_F64},
              {ronde_allgather, kWider, 2, RONDE_F64},
              {ronde_allgather, kWide, 2, RONDE_F32}};
  const int bad = own_rank() == all_ranks() - 1;
  ronde_work work = NULL;
  for (int i = 0; i < 4; ++i) {
    ronde_tensor tensor = bad ? tensor_of(values, kOdd[i].shape, kOdd[i].dims, kOdd[i].dtype)
                              : tensor_of(values, kWide, 2, RONDE_F64);
    const int owned = kOdd[i].start != ronde_broadcast;
    CHECK_OK(kOdd[i].start(&tensor, owned ? NULL : &tensor, NULL, &work));
    CHECK_FAILS(RONDE_E_USAGE, "without a name differs between ranks", finish(work));
  }
  CHECK_OK(start_sum("count", values, bad ? -3 : 1, kSet, &work));
  CHECK_FAILS(RONDE_E_USAGE, "allreduce 'count'", finish(work));
  check_job_continues();
}

CASE_ON(2, timeouts) {
  ronde_operation_options options = named("too late", kSet);
  ronde_work work = NULL;
  options.timeout_s = 0.02;
  if (own_rank() == 0) {
    CHECK_OK(ronde_barrier(&options, &work));
    CHECK_FAILS(RONDE_E_USAGE, "barrier 'too late' timed out on rank 0", finish(work));
  }
  barrier_of(kSet);
  options = named("in time", kSet);
  options.timeout_s = 1e300; /* for ever */
  CHECK_RUN(ronde_barrier(&options, &work), work);
}
