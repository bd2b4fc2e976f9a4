/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with a call, seen by its rank alone or by all together. The job goes on. */
#include <math.h>

#include "rank.h"

enum { kSet = RONDE_ALL_RANKS };

static double values[64];
static const int64_t kShape[9] = {2, 1, 1, 1, 1, 1, 1, 1, 1};
static ronde_work refused;

#define INVALID(part, call) CHECK_FAILS(RONDE_E_INVALID_ARGUMENT, part, call)

/* Two numbers. */
static ronde_tensor some(void) {
  return tensor_of(values, kShape, 1, RONDE_F64);
}

typedef int (*start_fn)(const ronde_tensor* in, ronde_tensor* out,
                        const ronde_operation_options* options, ronde_work* work);

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

/* What every operation refuses, of its input or its output. */
static void all_refuse(int code, const char* part, ronde_tensor tensor,
                       ronde_operation_options options) {
  for (int i = 0; i < kOperationCount; ++i) {
    const struct operation* const one = &kOperations[i];
    CHECK_FAILS(code, part,
                one->start(one->has_in ? &tensor : NULL, one->has_out ? &tensor : NULL, &options,
                           &refused));
    CHECK(refused == NULL);
  }
}

static void tensors_that_are_none(void) {
  const ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
#define BAD_TENSOR(part, field, value)                           \
  do {                                                           \
    ronde_tensor tensor = some();                                \
    tensor.field = (value);                                      \
    all_refuse(RONDE_E_INVALID_ARGUMENT, part, tensor, options); \
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
  const ronde_tensor unset = RONDE_TENSOR_INIT;
  all_refuse(RONDE_E_INVALID_ARGUMENT, "dtype", unset, options);
  check_job_goes_on();
}

static void options_that_are_none(void) {
#define BAD_OPTION(part, field, value)                              \
  do {                                                              \
    ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT; \
    options.field = (value);                                        \
    all_refuse(RONDE_E_INVALID_ARGUMENT, part, some(), options);    \
  } while (0)
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
  check_job_goes_on();
}

static void arguments_that_are_missing_or_too_many(void) {
  for (int i = 0; i < kOperationCount; ++i) {
    const struct operation* const one = &kOperations[i];
    ronde_tensor tensor = some();
    ronde_tensor empty = room_for(NULL, 2, RONDE_F64);
    ronde_tensor other = room_for(values, 2, RONDE_I64);
    ronde_tensor* const in = one->has_in ? &tensor : NULL;
    ronde_tensor* const out = one->has_out ? &tensor : NULL;
    INVALID("work is NULL", one->start(in, out, NULL, NULL));
    if (one->has_in && one->start != ronde_broadcast) {
      INVALID("in is NULL", one->start(NULL, out, NULL, &refused));
    }
    if (!one->has_in) INVALID("in is not NULL", one->start(&tensor, out, NULL, &refused));
    if (!one->has_out) INVALID("out is not NULL", one->start(in, &tensor, NULL, &refused));
    if (!one->has_out) continue;
    if (!one->may_own) INVALID("out is NULL", one->start(in, NULL, NULL, &refused));
    if (!one->has_in) continue;
    INVALID("out->data is NULL", one->start(in, &empty, NULL, &refused));
    INVALID("in and out differ", one->start(in, &other, NULL, &refused));
  }
  INVALID("out is NULL", ronde_broadcast(NULL, NULL, NULL, &refused));
  INVALID("work is NULL", ronde_barrier(NULL, NULL));
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
  CHECK_FAILS(RONDE_E_USAGE, "no timeline", ronde_timeline_stop());
  CHECK_FAILS(RONDE_E_INTERNAL, "/proc/no/rank", ronde_timeline_start("/proc/no", 0));
  CHECK_OK(ronde_mark_step(8));
  CHECK_FAILS(RONDE_E_TOO_SMALL, "bytes, size is 8", ronde_stats_json(small, sizeof(small)));
  CHECK_OK(ronde_barrier(NULL, &work));
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
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  ronde_tensor tensor = some();
  tensor.device = 1000;
  tensor.stream = values;
  options.peer = 1 - own_rank();
  for (int i = 0; i < kOperationCount; ++i) {
    const struct operation* const one = &kOperations[i];
    ronde_work work = NULL;
    if (one->may_own) {
      CHECK_FAILS(RONDE_E_UNSUPPORTED, "out is NULL", one->start(&tensor, NULL, NULL, &work));
    }
    if (one->start == ronde_alltoall || !one->has_in) continue;
    if (!one->has_out && all_ranks() != 2) continue;
    int status = RONDE_OK;
    if (one->has_out) {
      status = one->start(&tensor, &tensor, NULL, &work);
    } else if (own_rank() == 0) {
      status = ronde_send(&tensor, NULL, &options, &work);
    } else {
      status = ronde_recv(NULL, &tensor, &options, &work);
    }
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
    CHECK_FAILS(RONDE_E_DUPLICATE_NAME, "allreduce 'in flight' is still in flight",
                start_sum("in flight", values, 1, kSet, &refused));
  }
  barrier_of(kSet);
  if (work == NULL) CHECK_OK(start_sum("in flight", &value, 1, kSet, &work));
  CHECK_OK(finish(work));
  CHECK_FAILS(RONDE_E_UNKNOWN_SET, "process set 44", start_sum("x", values, 1, 44, &refused));
  ronde_tensor one = tensor_of(values, NULL, 0, RONDE_F64);
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  CHECK_FAILS(RONDE_E_USAGE, "out of range", ronde_send(&one, NULL, NULL, &refused)); /* to any */
  options.peer = own_rank();
  CHECK_FAILS(RONDE_E_USAGE, "this rank itself", ronde_recv(NULL, &one, &options, &refused));
  options.tag = -1;
  CHECK_FAILS(RONDE_E_USAGE, "tag -1", ronde_send(&one, NULL, &options, &refused));
  options.tag = 0;
  options.peer = -2;
  CHECK_FAILS(RONDE_E_USAGE, "peer -2 is out of range: there are ranks 0 to",
              ronde_recv(NULL, &one, &options, &refused));
  CHECK_LAST_ERROR(", or RONDE_ANY");
  options.peer = 9;
  CHECK_FAILS(RONDE_E_USAGE, ", or RONDE_ANY", ronde_recv(NULL, &one, &options, &refused));
  options = named("x", kSet);
  CHECK_FAILS(RONDE_E_USAGE, "messages have no name", ronde_send(&one, NULL, &options, &refused));
  options.splits = kShape;
  options.split_count = 1;
  CHECK_FAILS(RONDE_E_USAGE, "only an alltoall", ronde_allreduce(&one, &one, &options, &refused));
  CHECK(refused == NULL);
  /* In a group the engine looks at its end. */
  ronde_work group = NULL;
  CHECK_OK(ronde_group_begin(kSet));
  options = named("x", kSet);
  options.prescale = NAN;
  CHECK_OK(ronde_allreduce(&one, &one, &options, &work));
  CHECK_FAILS(RONDE_E_USAGE, "NaN", ronde_group_end(&group));
  CHECK_FAILS(RONDE_E_USAGE, "NaN", finish(work));
  CHECK(group == NULL);
  /* The same memory twice. */
  ronde_work twin = NULL;
  CHECK_OK(ronde_group_begin(kSet));
  options = named("x", kSet);
  CHECK_OK(ronde_allreduce(&one, &one, &options, &work));
  options = named("y", kSet);
  CHECK_OK(ronde_allreduce(&one, &one, &options, &twin));
  CHECK_FAILS(RONDE_E_USAGE, "list a tensor once in a group", ronde_group_end(&group));
  CHECK_FAILS(RONDE_E_USAGE, "allreduce 'y' writes its result to", finish(work));
  CHECK_FAILS(RONDE_E_USAGE, "memory that allreduce 'x'", finish(twin));
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
  const ronde_tensor tensor = tensor_of(values, even, 1, RONDE_F64);
  ronde_operation_options options = named("split", kSet);
  int64_t splits[8] = {0};
  ronde_work work = NULL;
  int status = start_sum("count", values, bad ? -3 : 1, kSet, &work);
  expect_refusal(status, "allreduce 'count'", work);
  status = start_sum("large", values, bad ? INT64_MAX : 1, kSet, &work);
  expect_refusal(status, "allreduce 'large'", work);
  status = start_gather("extent", values, bad ? -1 : 1, kSet, &work);
  expect_refusal(status, "allgather 'extent'", work);
  splits[0] = all_ranks() + bad;
  options.splits = splits;
  options.split_count = all_ranks();
  status = ronde_alltoall(&tensor, NULL, &options, &work);
  expect_refusal(status, "do not add up to the first dimension", work);
  splits[0] = all_ranks();
  options.split_count = all_ranks() + bad;
  status = ronde_alltoall(&tensor, NULL, &options, &work);
  expect_refusal(status, "give one for each rank", work);
}

static void ranks_differ(void) {
  const int bad = is_mistaken();
  const int64_t wide[] = {2, 3};
  const int64_t one = own_rank() == 0 ? 2 : 1;
  ronde_work work = NULL;
  int status = start_sum("count", values, bad ? 3 : 1, kSet, &work);
  expect_refusal(status, "differs between ranks", work);
  ronde_tensor tensor = tensor_of(values, NULL, 0, bad ? RONDE_F32 : RONDE_F64);
  ronde_operation_options options = named("dtype", kSet);
  status = ronde_allreduce(&tensor, &tensor, &options, &work);
  expect_refusal(status, "allreduce 'dtype' differs between ranks", work);
  tensor = tensor_of(values, wide, bad ? 1 : 2, RONDE_F64);
  status = ronde_reducescatter(&tensor, NULL, NULL, &work);
  expect_refusal(status, "without a name differs between ranks", work);
  if (own_rank() < 2) {
    tensor = tensor_of(values, &one, 1, RONDE_F64);
    options = named(NULL, kSet);
    options.peer = 1 - own_rank();
    status = own_rank() == 0 ? ronde_send(&tensor, NULL, &options, &work)
                             : ronde_recv(NULL, &tensor, &options, &work);
    CHECK_OK(status);
    CHECK_FAILS(RONDE_E_USAGE, "the message from rank 0 to rank 1", finish(work));
  }
  check_job_goes_on();
}

/* As many elements, in another shape. */
static void shapes_differ(void) {
  const int64_t flat[] = {4, 6};
  const int64_t deep[] = {4, 2, 3};
  const int bad = is_mistaken();
  ronde_work work = NULL;
  for (int i = 0; i < 24; ++i) values[i] = own_rank();
  ronde_tensor tensor = tensor_of(values, bad ? deep : flat, bad ? 3 : 2, RONDE_F64);
  const ronde_operation_options options = named("shape", kSet);
  int status = ronde_allreduce(&tensor, &tensor, &options, &work);
  expect_refusal(status, "allreduce 'shape' differs between ranks", work);
  status = ronde_broadcast(&tensor, &tensor, &options, &work);
  expect_refusal(status, "broadcast 'shape' differs between ranks", work);
  status = ronde_broadcast(NULL, &tensor, &options, &work);
  expect_refusal(status, "broadcast 'shape' differs between ranks", work);
  for (int i = 0; i < 24; ++i) CHECK(values[i] == own_rank());
}

static void a_timeout_of_an_operation(void) {
  double value = 1;
  const ronde_tensor in = tensor_of(&value, NULL, 0, RONDE_F64);
  ronde_tensor out = room_for(&value, 1, RONDE_F64);
  ronde_operation_options options = named("too late", kSet);
  ronde_work work = NULL;
  options.timeout_s = 0.02;
  if (own_rank() == 0) {
    CHECK_OK(ronde_allreduce(&in, &out, &options, &work));
    CHECK_FAILS(RONDE_E_USAGE, "allreduce 'too late' timed out on rank 0", finish(work));
    options.name = "too late, too";
    CHECK_OK(ronde_barrier(&options, &work));
    CHECK_FAILS(RONDE_E_USAGE, "barrier 'too late, too' timed out on rank 0", finish(work));
    options.name = "too late";
  }
  barrier_of(kSet);
  if (own_rank() != 0) {
    CHECK_OK(ronde_allreduce(&in, &out, &options, &work));
    CHECK_FAILS(RONDE_E_USAGE, "timed out on rank 0", finish(work)); /* the same everywhere */
  }
  options = named("in time", kSet);
  options.timeout_s = 1e300; /* for ever */
  CHECK_OK(ronde_allreduce(&in, &out, &options, &work));
  CHECK_OK(finish(work));
  CHECK(value == all_ranks());
}

static void all_ask_for_what_there_is_not(void) {
  ronde_tensor flag = tensor_of(values, NULL, 0, RONDE_BOOL);
  ronde_operation_options options = named("flags", kSet);
  ronde_work work = NULL;
  int status = start_broadcast("far", values, 1, 9, kSet, &work);
  expect_refusal(status, "root 9 is out of range", work);
  options.op = RONDE_AVERAGE;
  status = ronde_allreduce(&flag, &flag, &options, &work);
  expect_refusal(status, "bools have no average", work);
}

const struct test_case kBadInput[] = {
    {"tensors that are none", tensors_that_are_none, ""},
    {"options that are none", options_that_are_none, ""},
    {"arguments that are missing, or too many", arguments_that_are_missing_or_too_many, ""},
    {"arguments of other functions", arguments_of_other_functions, ""},
    {"buffers on a gpu that is not there", buffers_on_a_gpu_that_is_not_there, ""},
    {"uses that make no sense", uses_that_make_no_sense, ""},
    {"one rank is mistaken", one_rank_is_mistaken, ""},
    {"ranks differ", ranks_differ, "[n2][n3]"},
    {"shapes differ", shapes_differ, "[n2][n3]"},
    {"a timeout of an operation", a_timeout_of_an_operation, "[n2][n3]"},
    {"all ask for what there is not", all_ask_for_what_there_is_not, ""},
    CASES_END,
};
