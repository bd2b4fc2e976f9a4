/* SPDX-License-Identifier: Apache-2.0 */
/* What every operation computes, for every type, compared with what it is by formula. */
#include <math.h>

#include "rank.h"

/* Numbers in any type: small whole ones, which all of them hold exactly. */

static uint16_t to_half(double number) {
  if (number == 0) return 0;
  int exponent = 0;
  const double fraction = frexp(number, &exponent); /* in [0.5, 1) */
  const unsigned mantissa = (unsigned)ldexp(fraction, 11) - 1024;
  return (uint16_t)(((unsigned)(exponent + 14) << 10) + mantissa);
}

static uint16_t to_bfloat(float number) {
  uint32_t bits = 0;
  memcpy(&bits, &number, sizeof(bits));
  return (uint16_t)(bits >> 16);
}

static size_t bytes_of(int dtype) {
  static const size_t bytes[] = {1, 1, 2, 4, 8, 2, 2, 4, 8, 1};
  return bytes[dtype];
}

/* On a machine whose integers begin with the low byte. */
static void put(void* memory, int64_t index, int dtype, double number) {
  const int64_t whole = dtype == RONDE_BOOL ? number != 0 : (int64_t)number;
  const float single = (float)number;
  const uint16_t half = dtype == RONDE_F16 ? to_half(number) : to_bfloat(single);
  const void* from = &whole;
  if (dtype == RONDE_F16 || dtype == RONDE_BF16) from = &half;
  if (dtype == RONDE_F32) from = &single;
  if (dtype == RONDE_F64) from = &number;
  memcpy((char*)memory + (size_t)index * bytes_of(dtype), from, bytes_of(dtype));
}

static int holds(const void* memory, int64_t index, int dtype, double number) {
  const char* const element = (const char*)memory + (size_t)index * bytes_of(dtype);
  char expected[8];
  put(expected, 0, dtype, number);
  return memcmp(element, expected, bytes_of(dtype)) == 0;
}

/* Element `index` of rank `rank`. */
static double number_of(int rank, int64_t index) {
  return (double)((index + 2 * rank) % 5);
}

/* For an average of up to 3 ranks to be whole. */
static double factor_of(int op) {
  return op == RONDE_AVERAGE ? 6 : 1;
}

/* What the ranks' numbers come to; of bools, whether it is not 0. */
static double reduced(int size, int64_t index, int op) {
  double result = number_of(0, index) * factor_of(op);
  for (int rank = 1; rank < size; ++rank) {
    const double next = number_of(rank, index) * factor_of(op);
    if (op == RONDE_SUM || op == RONDE_AVERAGE) result += next;
    if (op == RONDE_MIN && next < result) result = next;
    if (op == RONDE_MAX && next > result) result = next;
    if (op == RONDE_PRODUCT) result *= next;
  }
  return op == RONDE_AVERAGE ? result / size : result;
}

enum { kCount = 37 };

static void fill(void* memory, int64_t count, int dtype, int rank, double factor) {
  for (int64_t i = 0; i < count; ++i) put(memory, i, dtype, number_of(rank, i) * factor);
}

/* The average of what is equal, the sum of what has nothing in common. */
static void check_adasum(void) {
  double values[2] = {1.5, -3};
  double apart[RONDE_MAX_DIMS] = {0};
  const int64_t places = all_ranks() < RONDE_MAX_DIMS ? all_ranks() : RONDE_MAX_DIMS;
  const int64_t two = 2;
  int32_t integers[2] = {1, 2};
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  options.op = RONDE_ADASUM;
  ronde_work work = NULL;
  ronde_tensor tensor = tensor_of(values, &two, 1, RONDE_F64);
  CHECK_OK(ronde_allreduce(&tensor, &tensor, &options, &work));
  CHECK_OK(finish(work));
  CHECK(values[0] == 1.5 && values[1] == -3);
  if (own_rank() < places) apart[own_rank()] = 2 + own_rank();
  tensor = tensor_of(apart, &places, 1, RONDE_F64);
  CHECK_OK(ronde_allreduce(&tensor, &tensor, &options, &work));
  CHECK_OK(finish(work));
  for (int rank = 0; rank < places; ++rank) CHECK(apart[rank] == 2 + rank);
  tensor = tensor_of(integers, &two, 1, RONDE_I32);
  CHECK_FAILS(RONDE_E_USAGE, "adasum of i32", ronde_allreduce(&tensor, &tensor, &options, &work));
}

static void check_reductions(int dtype, int op) {
  double in[kCount];
  double out[kCount];
  const int64_t shape[] = {kCount};
  const ronde_tensor input = tensor_of(in, shape, 1, dtype);
  ronde_tensor output = room_for(out, kCount, dtype);
  ronde_operation_options options = named("reduced", RONDE_ALL_RANKS);
  options.op = op;
  ronde_work work = NULL;
  fill(in, kCount, dtype, own_rank(), factor_of(op));
  CHECK_OK(ronde_allreduce(&input, &output, &options, &work));
  CHECK_OK(finish(work));
  for (int64_t i = 0; i < kCount; ++i) {
    CHECK(holds(out, i, dtype, reduced(all_ranks(), i, op)));
  }
  /* By parts: rank r's rows follow those of the ranks before it. */
  void* data = NULL;
  int64_t rows = -1;
  options.name = "scattered";
  CHECK_OK(ronde_reducescatter(&input, NULL, &options, &work));
  CHECK_OK(ronde_work_wait(work, -1));
  CHECK_OK(ronde_work_output(work, &data, NULL, &rows, NULL));
  int64_t first = 0;
  for (int rank = 0; rank < own_rank(); ++rank) {
    first += kCount / all_ranks() + (rank < kCount % all_ranks());
  }
  CHECK(rows == kCount / all_ranks() + (own_rank() < kCount % all_ranks()));
  for (int64_t i = 0; i < rows; ++i) {
    CHECK(holds(data, i, dtype, reduced(all_ranks(), first + i, op)));
  }
  CHECK_OK(ronde_work_free(work));
}

static void every_type_is_reduced(void) {
  for (int dtype = RONDE_U8; dtype <= RONDE_BOOL; ++dtype) {
    for (int op = RONDE_SUM; op <= RONDE_PRODUCT; ++op) {
      if (dtype != RONDE_BOOL || op != RONDE_AVERAGE) check_reductions(dtype, op);
    }
  }
  check_adasum();
}

static void check_broadcast(int dtype) {
  double buffer[kCount];
  double out[kCount];
  const int64_t shape[] = {kCount};
  const int root = all_ranks() - 1;
  /* Only the root needs data. */
  const ronde_tensor input = tensor_of(own_rank() == root ? buffer : NULL, shape, 1, dtype);
  ronde_tensor output = room_for(out, kCount, dtype);
  ronde_tensor in_place = tensor_of(buffer, shape, 1, dtype);
  ronde_operation_options options = named("sent", RONDE_ALL_RANKS);
  ronde_work works[2] = {NULL, NULL};
  options.root = root;
  fill(buffer, kCount, dtype, own_rank(), 1);
  CHECK_OK(ronde_broadcast(&input, &output, &options, &works[0]));
  CHECK_OK(finish(works[0]));
  CHECK_OK(ronde_broadcast(NULL, &in_place, &options, &works[1]));
  CHECK_OK(finish(works[1]));
  for (int64_t i = 0; i < kCount; ++i) {
    CHECK(holds(out, i, dtype, number_of(root, i)));
    CHECK(holds(buffer, i, dtype, number_of(root, i)));
  }
}

/* Rank r brings r + 1 rows of 3 elements. */
static void check_allgather(int dtype, int owned) {
  enum { kWidth = 3, kMostRows = 64 };
  double in[kMostRows];
  double out[kMostRows * kWidth];
  const int64_t shape[] = {own_rank() + 1, kWidth};
  const ronde_tensor input = tensor_of(in, shape, 2, dtype);
  ronde_tensor output = room_for(out, kMostRows * kWidth, dtype);
  const ronde_operation_options options = named("gathered", RONDE_ALL_RANKS);
  ronde_work work = NULL;
  fill(in, shape[0] * kWidth, dtype, own_rank(), 1);
  CHECK_OK(ronde_allgather(&input, owned ? NULL : &output, &options, &work));
  CHECK_OK(ronde_work_wait(work, -1));
  void* data = NULL;
  int dims = 0;
  int result_dtype = -1;
  int64_t result_shape[RONDE_MAX_DIMS] = {0};
  CHECK_OK(ronde_work_output(work, &data, &dims, result_shape, &result_dtype));
  CHECK(dims == 2 && result_dtype == dtype && result_shape[1] == kWidth);
  CHECK(result_shape[0] == all_ranks() * (all_ranks() + 1) / 2);
  CHECK(owned ? (uintptr_t)data % 64 == 0 : data == (void*)out);
  int64_t at = 0;
  for (int rank = 0; rank < all_ranks(); ++rank) {
    for (int64_t i = 0; i < (rank + 1) * kWidth; ++i) {
      CHECK(holds(data, at++, dtype, number_of(rank, i)));
    }
  }
  CHECK_OK(ronde_work_free(work));
}

/* Rank r sends r + to + 1 rows of 2 elements to rank `to`. */
static void check_alltoall(int dtype, int owned) {
  enum { kWidth = 2, kMost = 64 };
  double in[kMost];
  double out[kMost];
  int64_t splits[kMost] = {0};
  int64_t received[kMost] = {0};
  int64_t shape[] = {0, kWidth};
  const ronde_tensor input = tensor_of(in, shape, 2, dtype);
  ronde_tensor output = room_for(out, kMost, dtype);
  ronde_operation_options options = named("exchanged", RONDE_ALL_RANKS);
  options.splits = splits;
  options.split_count = all_ranks();
  ronde_work work = NULL;
  for (int to = 0; to < all_ranks(); ++to) shape[0] += splits[to] = own_rank() + to + 1;
  fill(in, shape[0] * kWidth, dtype, own_rank(), 1);
  CHECK_OK(ronde_alltoall(&input, owned ? NULL : &output, &options, &work));
  memset(splits, 0, sizeof(splits)); /* they were copied */
  CHECK_OK(ronde_work_wait(work, -1));
  CHECK_OK(ronde_work_splits(work, received));
  void* data = NULL;
  CHECK_OK(ronde_work_output(work, &data, NULL, shape, NULL));
  int64_t at = 0;
  for (int from = 0; from < all_ranks(); ++from) {
    CHECK(received[from] == from + own_rank() + 1);
    int64_t first = 0;
    for (int to = 0; to < own_rank(); ++to) first += (from + to + 1) * kWidth;
    for (int64_t i = 0; i < received[from] * kWidth; ++i) {
      CHECK(holds(data, at++, dtype, number_of(from, first + i)));
    }
  }
  CHECK(at == shape[0] * kWidth);
  CHECK_OK(ronde_work_free(work));
}

static void every_type_is_moved(void) {
  for (int dtype = RONDE_U8; dtype <= RONDE_BOOL; ++dtype) {
    check_broadcast(dtype);
    for (int owned = 0; owned <= 1; ++owned) {
      check_allgather(dtype, owned);
      check_alltoall(dtype, owned);
    }
  }
}

static void results_in_place(void) {
  enum { kRows = 4 };
  double values[kRows * 8];
  const int64_t own_shape[] = {kRows};
  const int64_t all_shape[] = {(int64_t)kRows * all_ranks()};
  ronde_work work = NULL;
  /* Every rank's own part lies where it belongs. */
  double* const own = values + kRows * own_rank();
  ronde_tensor part = tensor_of(own, own_shape, 1, RONDE_F64);
  ronde_tensor all = tensor_of(values, all_shape, 1, RONDE_F64);
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  fill(own, kRows, RONDE_F64, own_rank(), 1);
  CHECK_OK(ronde_allgather(&part, &all, NULL, &work));
  CHECK_OK(finish(work));
  for (int i = 0; i < kRows * all_ranks(); ++i) {
    CHECK(values[i] == number_of(i / kRows, i % kRows));
  }
  fill(values, all_shape[0], RONDE_F64, own_rank(), 1);
  CHECK_OK(ronde_alltoall(&all, &all, NULL, &work));
  CHECK_OK(finish(work));
  for (int i = 0; i < kRows * all_ranks(); ++i) {
    CHECK(values[i] == number_of(i / kRows, own_rank() * kRows + i % kRows));
  }
  fill(values, all_shape[0], RONDE_F64, own_rank(), 1);
  options.prescale = 2;
  options.postscale = 0.5;
  CHECK_OK(ronde_reducescatter(&all, &part, &options, &work));
  CHECK_OK(finish(work));
  for (int i = 0; i < kRows; ++i) {
    CHECK(own[i] == reduced(all_ranks(), own_rank() * kRows + i, RONDE_SUM));
  }
}

static void factors_before_and_after(void) {
  double value = own_rank() + 1;
  int32_t whole = own_rank() + 1;
  ronde_tensor tensor = tensor_of(&value, NULL, 0, RONDE_F64);
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  ronde_work work = NULL;
  options.op = RONDE_MAX;
  options.prescale = -2;
  options.postscale = 0.25;
  CHECK_OK(ronde_allreduce(&tensor, &tensor, &options, &work));
  CHECK_OK(finish(work));
  CHECK(value == -0.5);
  tensor = tensor_of(&whole, NULL, 0, RONDE_I32);
  options.op = RONDE_SUM;
  options.prescale = 1;
  options.postscale = 0.5;
  CHECK_OK(ronde_allreduce(&tensor, &tensor, &options, &work));
  CHECK_OK(finish(work));
  CHECK(whole == all_ranks() * (all_ranks() + 1) / 4);
}

static void nothing_and_scalars(void) {
  const int64_t none[] = {0, 5};
  const ronde_tensor nothing = tensor_of(NULL, none, 2, RONDE_F32);
  ronde_work work = NULL;
  void* data = &work;
  int dims = -1;
  int64_t shape[RONDE_MAX_DIMS] = {-1, -1};
  CHECK_OK(start_sum("none", NULL, 0, RONDE_ALL_RANKS, &work));
  CHECK_OK(finish(work));
  CHECK_OK(start_broadcast("none", NULL, 0, 0, RONDE_ALL_RANKS, &work));
  CHECK_OK(finish(work));
  CHECK_OK(ronde_allgather(&nothing, NULL, NULL, &work));
  CHECK_OK(ronde_work_wait(work, -1));
  CHECK_OK(ronde_work_output(work, &data, &dims, shape, NULL));
  CHECK(data == NULL && dims == 2 && shape[0] == 0 && shape[1] == 5);
  CHECK_OK(ronde_work_free(work));
  /* One rank alone has something to gather. */
  const double one = 7;
  const int is_first = own_rank() == 0;
  CHECK_OK(start_gather("some", is_first ? &one : NULL, is_first, RONDE_ALL_RANKS, &work));
  CHECK_OK(ronde_work_wait(work, -1));
  CHECK_OK(ronde_work_output(work, &data, NULL, shape, NULL));
  CHECK(shape[0] == 1 && *(const double*)data == 7);
  CHECK_OK(ronde_work_free(work));
  /* A scalar has no first dimension to gather along: every rank is told. */
  const ronde_tensor scalar = tensor_of(&one, NULL, 0, RONDE_F64);
  const ronde_operation_options options = named("scalar", RONDE_ALL_RANKS);
  CHECK_OK(ronde_allgather(&scalar, NULL, &options, &work));
  CHECK_FAILS(RONDE_E_USAGE, "allgather 'scalar'", finish(work));
  CHECK_OK(ronde_alltoall(&scalar, NULL, &options, &work));
  CHECK_FAILS(RONDE_E_USAGE, "alltoall 'scalar'", finish(work));
  CHECK_OK(ronde_reducescatter(&scalar, NULL, &options, &work));
  CHECK_FAILS(RONDE_E_USAGE, "reducescatter 'scalar'", finish(work));
}

static void messages(void) {
  const int next = (own_rank() + 1) % all_ranks();
  const int previous = (own_rank() + all_ranks() - 1) % all_ranks();
  double sent[2] = {own_rank(), 1};
  double first = -1;
  double second = -1;
  ronde_work sends[2] = {NULL, NULL};
  ronde_work receives[2] = {NULL, NULL};
  /* By tags, in another order than they are sent. */
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  ronde_tensor tensor = tensor_of(&second, NULL, 0, RONDE_F64);
  options.tag = 6;
  CHECK_OK(ronde_recv(NULL, &tensor, &options, &receives[1]));
  tensor.data = &first;
  options.tag = 5;
  options.peer = previous;
  CHECK_OK(ronde_recv(NULL, &tensor, &options, &receives[0]));
  options.peer = next;
  for (int i = 0; i < 2; ++i) {
    tensor.data = &sent[i];
    options.tag = 5 + i;
    CHECK_OK(ronde_send(&tensor, NULL, &options, &sends[i]));
  }
  for (int i = 0; i < 2; ++i) {
    int source = -1;
    CHECK_OK(ronde_work_wait(receives[i], -1));
    CHECK_OK(ronde_work_source(receives[i], &source));
    CHECK(source == previous);
    CHECK_OK(ronde_work_free(receives[i]));
    CHECK_OK(finish(sends[i]));
  }
  CHECK(first == previous && second == 1);
}

/* What no f16 holds is rounded on the way. */
static void compressed_on_the_way(void) {
  float values[2] = {1.0f + 1.0f / 4096, 2};
  const int64_t two = 2;
  ronde_tensor tensor = tensor_of(values, &two, 1, RONDE_F32);
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  ronde_work work = NULL;
  options.op = RONDE_MAX;
  options.wire_dtype = RONDE_F16;
  CHECK_OK(ronde_allreduce(&tensor, &tensor, &options, &work));
  CHECK_OK(finish(work));
  CHECK(values[0] == 1 && values[1] == 2);
  options.wire_dtype = RONDE_I8;
  CHECK_FAILS(RONDE_E_USAGE, "cannot be sent as i8",
              ronde_allreduce(&tensor, &tensor, &options, &work));
}

static void who_is_who(void) {
  int number = -1;
  CHECK_OK(ronde_local_rank(&number));
  CHECK(number == own_rank());
  CHECK_OK(ronde_local_size(&number));
  CHECK(number == all_ranks());
  CHECK_OK(ronde_cross_rank(&number));
  CHECK(number == 0);
  CHECK_OK(ronde_cross_size(&number));
  CHECK(number == 1);
  CHECK_OK(ronde_is_homogeneous(&number));
  CHECK(number == 1);
  CHECK(ronde_is_initialized() == 1);
  CHECK_FAILS(RONDE_E_USAGE, "called twice", ronde_init(NULL));
}

const struct test_case kCollectives[] = {
    {"every type is reduced", every_type_is_reduced, ""},
    {"every type is moved", every_type_is_moved, ""},
    {"results may lie where the input is", results_in_place, ""},
    {"factors before and after", factors_before_and_after, ""},
    {"nothing, and scalars", nothing_and_scalars, ""},
    {"messages by tag, from one and from any", messages, "[n2][n3]"},
    {"compressed on the way", compressed_on_the_way, ""},
    {"who is who", who_is_who, ""},
    CASES_END,
};
