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
  for (const struct operation* one = kOperations; one < kOperations + kOperationCount; ++one) {
    CHECK_INVALID(part, one->start(one->has_in ? &tensor : NULL, one->has_out ? &tensor : NULL,
                                   &options, &refused));
    CHECK(refused == NULL);
  }
}

CASE(bad_tensors_and_options) {
#define BAD(part, what, field, value)                               \
  do {                                                              \
    ronde_tensor tensor = some();                                   \
    ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT; \
    what.field = (value);                                           \
    all_refuse(part, tensor, options);                              \
  } while (0)
  BAD("struct_size of a ronde_tensor", tensor, struct_size, 0);
  BAD("data is NULL", tensor, data, NULL);
  BAD("shape is NULL", tensor, shape, NULL);
  BAD("dims", tensor, dims, -1);
  BAD("dims", tensor, dims, RONDE_MAX_DIMS + 1);
  BAD("dtype", tensor, dtype, RONDE_C128 + 1);
  BAD("dtype", tensor, dtype, RONDE_NO_DTYPE); /* that of RONDE_TENSOR_INIT */
  BAD("device", tensor, device, -2);
  BAD("stream", tensor, stream, values);
  BAD("capacity", tensor, capacity, -2);
  BAD("struct_size of a ronde_operation_options", options, struct_size, 0);
  BAD("op is none", options, op, RONDE_BIT_XOR + 1);
  BAD("op is none", options, op, -1);
  BAD("wire_dtype is none", options, wire_dtype, RONDE_C128 + 1);
  BAD("wire_dtype is none", options, wire_dtype, -2);
  BAD("splits and split_count", options, splits, kShape);
  BAD("splits and split_count", options, split_count, 2);
  BAD("splits and split_count", options, split_count, -1);
  BAD("timeout_s", options, timeout_s, -1);
  BAD("timeout_s", options, timeout_s, NAN);
  check_job_continues();
}

CASE(arguments_that_are_missing_or_too_many) {
  for (const struct operation* one = kOperations; one < kOperations + kOperationCount; ++one) {
    ronde_tensor tensor = some();
    ronde_tensor empty = room_for(NULL, 2, RONDE_F64);
    ronde_tensor other = room_for(values, 2, RONDE_I64);
    ronde_tensor small = some();
    ronde_tensor* const in = one->has_in ? &tensor : NULL;
    ronde_tensor* const out = one->has_out ? &tensor : NULL;
    CHECK_INVALID("work is NULL", one->start(in, out, NULL, NULL));
    if (one->has_in && one->start != ronde_broadcast) {
      CHECK_INVALID("in is NULL", one->start(NULL, out, NULL, &refused));
    }
    if (!one->has_in) CHECK_INVALID("in is not NULL", one->start(&tensor, out, NULL, &refused));
    if (!one->has_out) CHECK_INVALID("out is not NULL", one->start(in, &tensor, NULL, &refused));
    if (!one->has_out) continue;
    small.capacity = 1;
    if (!one->may_own) {
      CHECK_INVALID("out is NULL", one->start(in, NULL, NULL, &refused));
      CHECK_FAILS(RONDE_E_TOO_SMALL, "the result has 2 elements [2], and out has room for 1",
                  one->start(in, &small, NULL, &refused));
    }
    if (!one->has_in) continue;
    CHECK_INVALID("out->data is NULL", one->start(in, &empty, NULL, &refused));
    CHECK_INVALID("in and out differ", one->start(in, &other, NULL, &refused));
  }
  CHECK_INVALID("out is NULL", ronde_broadcast(NULL, NULL, NULL, &refused));
  CHECK_INVALID("work is NULL", ronde_barrier(NULL, NULL));
  CHECK_INVALID("work is NULL", ronde_join(kSet, NULL));
  CHECK(refused == NULL);
}

CASE(arguments_of_other_functions) {
  char small[8];
  int number = 99;
  uint32_t set = 5;
  int64_t splits[8];
  ronde_work work = NULL;
  CHECK_INVALID("NULL", ronde_rank(kSet, NULL));
  CHECK_INVALID("NULL", ronde_size(kSet, NULL));
  for (int i = 0; i < kNumberCount; ++i) CHECK_INVALID("NULL", kNumbers[i](NULL));
  CHECK_INVALID("NULL", ronde_process_set_included(kSet, NULL));
  CHECK_INVALID("ranks is NULL", ronde_process_set_add(NULL, 1, &set));
  CHECK_INVALID("negative", ronde_process_set_add(&number, -1, &set));
  CHECK_INVALID("set is NULL", ronde_process_set_add(&number, 1, NULL));
  CHECK_INVALID("set is NULL", ronde_process_set_create(&number, 1, NULL, NULL));
  CHECK(ronde_process_set_create(&number, 1, "", &set) == RONDE_E_USAGE);
  CHECK(ronde_process_set_add(&number, 1, &set) == RONDE_E_USAGE && set == 5);
  CHECK_INVALID("NULL", ronde_abort(NULL));
  CHECK_INVALID("NULL", ronde_stats_json(NULL, 10));
  CHECK_INVALID("NULL", ronde_timeline_start(NULL, 0));
  CHECK_FAILS(RONDE_E_USAGE, "no timeline", ronde_timeline_stop());
  CHECK_FAILS(RONDE_E_INTERNAL, "/proc/no/rank", ronde_timeline_start("/proc/no", 0));
  CHECK_OK(ronde_mark_step(8));
  CHECK_INVALID("name is NULL", ronde_record(NULL, 0.5));
  CHECK_FAILS(RONDE_E_USAGE, "give a name of 1 to 64 bytes", ronde_record("", 0.5));
  CHECK_OK(ronde_record("loss", 0.5));
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
  CHECK_FAILS(RONDE_E_UNSUPPORTED, "out and allocate", ronde_allgather(&tensor, NULL, NULL, &work));
  int status = ronde_allreduce(&tensor, &tensor, NULL, &work);
  if (status == RONDE_OK) {
    CHECK_FAILS(RONDE_E_USAGE, "no backend for cuda buffers", ronde_work_wait_stream(work, values));
    status = finish(work);
  }
  CHECK(status == RONDE_E_USAGE);
  check_job_continues();
}

/* What the engine refuses on this rank is the code of the call; what the ranks refuse is the code
 * of the work on all of them. */
CASE_ON(2, uses_that_make_no_sense) {
  const int bad = own_rank() == all_ranks() - 1;
  ronde_tensor one = some();
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  ronde_work work = NULL;
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "process set 44", start_sum("x", values, 1, 44, &refused));
  for (int i = 0; i < 2; ++i) {
    options.peer = i == 0 ? -2 : 9;
    CHECK_FAILS(RONDE_E_USAGE, " is out of range: there are ranks 0 to",
                ronde_recv(NULL, &one, &options, &refused));
    CHECK_LAST_ERROR(", or RONDE_ANY");
  }
  CHECK(refused == NULL);
  /* The engine gets extents that make no sense as they are. */
  CHECK_OK(start_sum("count", values, bad ? -3 : 1, kSet, &work));
  CHECK_FAILS(RONDE_E_USAGE, "allreduce 'count'", finish(work));
  check_job_continues();
}

CASE_ON(2, timeouts) {
  ronde_operation_options options = named("too late", kSet);
  ronde_work work = NULL;
  options.timeout_s = 0.02;
  int late[3] = {-1, -1, -1};
  int count = -1;
  if (own_rank() == 0) {
    CHECK_OK(ronde_barrier(&options, &work));
    CHECK_FAILS(RONDE_E_DEADLINE, "barrier 'too late' timed out on rank 0",
                ronde_work_wait(work, -1));
    CHECK_OK(ronde_work_missing_ranks(work, NULL, &count));
    CHECK(count == all_ranks() - 1);
    CHECK_OK(ronde_work_missing_ranks(work, late, &count));
    CHECK(late[0] == 1 && (count == 1 || late[1] == 2));
    count = 0;
    CHECK_FAILS(RONDE_E_TOO_SMALL, "room for 0", ronde_work_missing_ranks(work, late, &count));
    CHECK_OK(ronde_work_free(work));
  }
  barrier_of(kSet);
  if (own_rank() == 0) CHECK_OK(ronde_barrier(NULL, &work));
  if (own_rank() == 0) CHECK(ronde_work_missing_ranks(work, NULL, &count) == RONDE_E_PENDING);
  barrier_of(add_set_of_all());
  if (own_rank() != 0) CHECK_OK(ronde_barrier(NULL, &work));
  CHECK_OK(ronde_work_wait(work, -1));
  CHECK_OK(ronde_work_missing_ranks(work, NULL, &count));
  CHECK(count == 0);
  CHECK_OK(ronde_work_free(work));
  options.name = "in time";
  options.timeout_s = 1e300; /* for ever */
  CHECK_RUN(ronde_barrier(&options, &work), work);
}
