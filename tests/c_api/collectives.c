/* SPDX-License-Identifier: Apache-2.0 */
/* What operations read from their structs and give through their works. The engine's own tests show
 * what they compute. */
#include <math.h>

#include "check.h"

#define SUITE "collectives"

CASE(reductions_and_factors) {
  const int n = all_ranks();
  const double expected[] = {n * (n + 1) / 2.0, (n + 1) / 2.0, 1, n, n == 3 ? 6 : n, 1};
  double value = 0;
  float single = 1.0f + 1.0f / 4096;
  ronde_tensor tensor = tensor_of(&value, NULL, 0, RONDE_F64);
  ronde_operation_options options = named("reduced", kSet);
  ronde_work work = NULL;
  for (int op = RONDE_SUM; op <= RONDE_ADASUM; ++op) {
    const int factors = op != RONDE_ADASUM;
    options.op = op;
    options.prescale = factors ? 0.5 : 1;
    options.postscale = factors ? 4 : 1;
    value = factors ? 2 * (own_rank() + 1) : 1; /* Adasum of equal vectors is their average */
    CHECK_RUN(ronde_allreduce(&tensor, &tensor, &options, &work), work);
    CHECK(fabs(value - expected[op] * options.postscale) < 1e-12);
  }
  /* No f16 holds the number: it is rounded on the way. */
  tensor = tensor_of(&single, NULL, 0, RONDE_F32);
  options = named("halves", kSet);
  options.op = RONDE_MAX;
  options.wire_dtype = RONDE_F16;
  CHECK_RUN(ronde_allreduce(&tensor, &tensor, &options, &work), work);
  CHECK(single == 1);
}

/* Rank r brings r + 1 rows, all bytes of which are 1 on rank 0 and else 0. */
CASE(results_of_every_type) {
  static const size_t kBytes[] = {1, 1, 2, 4, 8, 2, 2, 4, 8, 1};
  enum { kWidth = 3, kMost = 6 * kWidth };
  double in[kMost];
  double out[kMost];
  const int64_t shape[] = {own_rank() + 1, kWidth};
  const ronde_operation_options options = named("gathered", kSet);
  memset(in, own_rank() == 0, sizeof(in));
  for (int i = 0; i <= 2 * RONDE_BOOL + 1; ++i) {
    const int dtype = i / 2;
    const int owned = i % 2;
    const ronde_tensor input = tensor_of(in, shape, 2, dtype);
    ronde_tensor output = room_for(out, kMost, dtype);
    ronde_work work = NULL;
    void* data = NULL;
    int dims = 0;
    int result_dtype = -1;
    int64_t result_shape[RONDE_MAX_DIMS] = {0};
    CHECK_OK(ronde_allgather(&input, owned ? NULL : &output, &options, &work));
    CHECK_OK(ronde_work_wait(work, -1));
    CHECK_OK(ronde_work_output(work, &data, &dims, result_shape, &result_dtype));
    CHECK(dims == 2 && result_dtype == dtype && result_shape[1] == kWidth);
    CHECK(result_shape[0] == all_ranks() * (all_ranks() + 1) / 2);
    CHECK(owned ? (uintptr_t)data % 64 == 0 : data == (void*)out);
    const size_t row = kWidth * kBytes[dtype];
    for (size_t at = 0; at < (size_t)result_shape[0] * row; ++at) {
      CHECK(((const char*)data)[at] == (at < row));
    }
    CHECK_OK(ronde_work_free(work));
  }
}

CASE(results_without_elements) {
  const int64_t none[] = {0, 5};
  const ronde_tensor nothing = tensor_of(NULL, none, 2, RONDE_F32);
  ronde_work work = NULL;
  void* data = &work;
  int64_t shape[RONDE_MAX_DIMS] = {-1, -1};
  CHECK_RUN(start_sum("none", NULL, 0, kSet, &work), work);
  CHECK_OK(ronde_allgather(&nothing, NULL, NULL, &work));
  CHECK_OK(ronde_work_wait(work, -1));
  CHECK_OK(ronde_work_output(work, &data, NULL, shape, NULL));
  CHECK(data == NULL && shape[0] == 0 && shape[1] == 5);
  CHECK_OK(ronde_work_free(work));
}

/* In place without `in`, and else with data on the root alone. */
CASE(broadcasts) {
  const int root = all_ranks() - 1;
  double value = own_rank();
  double result = -1;
  const ronde_tensor in = tensor_of(own_rank() == root ? &value : NULL, NULL, 0, RONDE_F64);
  ronde_tensor out = room_for(&result, 1, RONDE_F64);
  ronde_operation_options options = named("sent", kSet);
  ronde_work work = NULL;
  options.root = root;
  CHECK_RUN(ronde_broadcast(&in, &out, &options, &work), work);
  CHECK_RUN(start_broadcast("in place", &value, 1, root, kSet, &work), work);
  CHECK(result == root && value == root);
}

/* Rank r sends r + to + 1 rows to rank `to`. */
CASE(an_alltoall_copies_its_splits) {
  double in[16];
  int64_t splits[3] = {0};
  int64_t received[3] = {0};
  int64_t rows = 0;
  const ronde_tensor input = tensor_of(in, &rows, 1, RONDE_F64);
  ronde_operation_options options = named("exchanged", kSet);
  ronde_work work = NULL;
  void* data = NULL;
  options.splits = splits;
  options.split_count = all_ranks();
  for (int to = 0; to < all_ranks(); ++to) {
    splits[to] = own_rank() + to + 1;
    for (int i = 0; i < splits[to]; ++i) in[rows++] = 10 * own_rank() + to;
  }
  CHECK_OK(ronde_alltoall(&input, NULL, &options, &work));
  memset(splits, 0, sizeof(splits));
  CHECK_OK(ronde_work_wait(work, -1));
  CHECK_OK(ronde_work_splits(work, received));
  CHECK_OK(ronde_work_output(work, &data, NULL, &rows, NULL));
  const double* at = data;
  for (int from = 0; from < all_ranks(); ++from) {
    CHECK(received[from] == from + own_rank() + 1);
    for (int i = 0; i < received[from]; ++i) CHECK(*at++ == 10 * from + own_rank());
  }
  CHECK(at == (const double*)data + rows);
  CHECK_OK(ronde_work_free(work));
}

/* The receives are posted in another order than the sends. */
CASE_ON(2, messages) {
  const int previous = (own_rank() + all_ranks() - 1) % all_ranks();
  double numbers[4] = {-1, -1, own_rank(), 1}; /* two to receive and two to send */
  ronde_work works[4];
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  for (int i = 1; i >= 0; --i) {
    ronde_tensor out = tensor_of(&numbers[i], NULL, 0, RONDE_F64);
    options.tag = 5 + i;
    options.peer = i == 1 ? RONDE_ANY : previous;
    CHECK_OK(ronde_recv(NULL, &out, &options, &works[i]));
  }
  options.peer = (own_rank() + 1) % all_ranks();
  for (int i = 2; i < 4; ++i) {
    const ronde_tensor in = tensor_of(&numbers[i], NULL, 0, RONDE_F64);
    options.tag = 3 + i;
    CHECK_OK(ronde_send(&in, NULL, &options, &works[i]));
  }
  for (int i = 0; i < 4; ++i) {
    int source = previous;
    CHECK_OK(ronde_work_wait(works[i], -1));
    if (i < 2) CHECK_OK(ronde_work_source(works[i], &source));
    CHECK(source == previous);
    CHECK_OK(ronde_work_free(works[i]));
  }
  CHECK(numbers[0] == previous && numbers[1] == 1);
}

/* In a set of its own, so that the ranks can still meet. */
CASE_ON(2, a_join_tells_the_last_rank) {
  const uint32_t set = add_set_of_all();
  int last = -1;
  ronde_work joined = NULL;
  if (own_rank() == 0) {
    CHECK_OK(ronde_join(set, &joined));
    CHECK_FAILS(RONDE_E_PENDING, "ronde_work_wait()", ronde_work_last_rank(joined, &last));
  }
  barrier_of(kSet);
  if (own_rank() != 0) CHECK_OK(ronde_join(set, &joined));
  CHECK_OK(ronde_work_wait(joined, -1));
  CHECK_OK(ronde_work_last_rank(joined, &last));
  CHECK(last != 0);
  CHECK_OK(ronde_work_free(joined));
  CHECK_OK(ronde_process_set_remove(set));
}

CASE(numbers_of_a_rank) {
  const int expected[kNumberCount] = {own_rank(), all_ranks(), 0, 1, 1};
  for (int i = 0; i < kNumberCount; ++i) {
    int number = -1;
    CHECK_OK(kNumbers[i](&number));
    CHECK(number == expected[i]);
  }
  CHECK(ronde_is_initialized() == 1);
  CHECK_FAILS(RONDE_E_USAGE, "called twice", ronde_init(NULL));
}
