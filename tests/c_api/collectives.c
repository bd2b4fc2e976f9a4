/* SPDX-License-Identifier: Apache-2.0 */
/* What operations read from their structs and give through their works. The engine's own tests show
 * what they compute. */
#include "check.h"

#define SUITE "collectives"

/* No f16 holds the numbers: they are rounded on the way. */
CASE(an_allreduce_and_its_options) {
  float value = (float)own_rank() + 1 + 1.0f / 4096;
  ronde_tensor tensor = tensor_of(&value, NULL, 0, RONDE_F32);
  ronde_operation_options options = named("reduced", kSet);
  ronde_work work = NULL;
  options.op = RONDE_MAX;
  options.prescale = 0.5;
  options.postscale = 4;
  options.wire_dtype = RONDE_F16;
  CHECK_RUN(ronde_allreduce(&tensor, &tensor, &options, &work), work);
  CHECK(value == 2.0f * (float)all_ranks());
}

/* On the root alone; of a complex number and of bits, with factors of each rank's own. */
CASE(reductions_to_a_root) {
  const int is_root = own_rank() == all_ranks() - 1;
  const double sums[] = {0, 2, 8, 20};
  const double in[] = {own_rank() + 1, -2};
  double out[] = {-5, -5};
  uint64_t bits = ~(1ull << (63 - own_rank()));
  const ronde_tensor input = tensor_of(in, NULL, 0, RONDE_C128);
  ronde_tensor output = tensor_of(out, NULL, 0, RONDE_C128);
  ronde_tensor mask = tensor_of(&bits, NULL, 0, RONDE_U64);
  ronde_operation_options options = named("to the root", kSet);
  ronde_work work = NULL;
  ronde_persistent prepared = NULL;
  void* data = NULL;
  options.root = all_ranks() - 1;
  options.rank_factor = own_rank() + 2;
  CHECK_OK(ronde_reduce(&input, is_root ? &output : NULL, &options, &work));
  CHECK_OK(ronde_work_wait(work, -1));
  CHECK(ronde_work_output(work, &data, NULL, NULL, NULL) ==
        (is_root ? RONDE_OK : RONDE_E_INVALID_ARGUMENT));
  CHECK(out[0] == (is_root ? sums[all_ranks()] : -5));
  CHECK(out[1] == (is_root ? -all_ranks() * (all_ranks() + 3) : -5));
  CHECK_OK(ronde_work_free(work));
  if (is_root) CHECK_INVALID("the root", ronde_reduce(&input, NULL, &options, &work));
  CHECK_OK(ronde_allreduce_init(&input, &output, &options, &prepared));
  CHECK_RUN(ronde_start(prepared, NULL, NULL, &work), work);
  CHECK(out[0] == sums[all_ranks()]);
  CHECK_OK(ronde_persistent_free(prepared));
  CHECK_FAILS(RONDE_E_USAGE, "rank_factor", ronde_allreduce(&mask, &mask, &options, &work));
  options = named("bits", kSet);
  options.op = RONDE_BIT_AND;
  CHECK_RUN(ronde_allreduce(&mask, &mask, &options, &work), work);
  CHECK(bits == ~0ull >> all_ranks());
}

/* Rank r brings r + 1 rows of its number, or as many without elements. */
CASE(results_of_the_work_and_of_the_caller) {
  const double in[] = {own_rank(), own_rank(), own_rank()};
  double out[6];
  ronde_work work = NULL;
  for (int i = 0; i < 4; ++i) {
    const int owned = i % 2;
    const int64_t width = i / 2;
    const int64_t shape[] = {own_rank() + 1, width};
    const ronde_tensor input = tensor_of(width == 0 ? NULL : in, shape, 2, RONDE_F64);
    ronde_tensor output = room_for(out, 6, RONDE_F64);
    void* data = &work;
    int dims = 0;
    int dtype = -1;
    int64_t result[RONDE_MAX_DIMS] = {0};
    CHECK_OK(ronde_allgather(&input, owned ? NULL : &output, NULL, &work));
    CHECK_OK(ronde_work_wait(work, -1));
    CHECK_OK(ronde_work_output(work, &data, &dims, result, &dtype));
    CHECK(dims == 2 && dtype == RONDE_F64 && result[1] == width);
    CHECK(result[0] == all_ranks() * (all_ranks() + 1) / 2);
    CHECK(owned ? (uintptr_t)data % 64 == 0 && (data == NULL) == (width == 0) : data == (void*)out);
    for (int at = 0; at < result[0] * width; ++at) {
      CHECK(((const double*)data)[at] == (at == 0 ? 0 : at < 3 ? 1 : 2));
    }
    CHECK_OK(ronde_work_free(work));
  }
  CHECK_RUN(start_sum("no elements", NULL, 0, kSet, &work), work);
}

/* The others have no data. */
CASE(a_broadcast_of_the_root) {
  const int root = all_ranks() - 1;
  double value = own_rank();
  double result = -1;
  const ronde_tensor in = tensor_of(own_rank() == root ? &value : NULL, NULL, 0, RONDE_F64);
  ronde_tensor out = room_for(&result, 1, RONDE_F64);
  ronde_operation_options options = named("sent", kSet);
  ronde_work work = NULL;
  options.root = root;
  CHECK_RUN(ronde_broadcast(&in, &out, &options, &work), work);
  CHECK(result == root);
}

/* Rank r sends r + 1 rows to every rank. */
CASE(an_alltoall_copies_its_splits) {
  const double in[9] = {0};
  int64_t splits[] = {own_rank() + 1, own_rank() + 1, own_rank() + 1};
  int64_t received[3] = {0};
  const int64_t rows = all_ranks() * splits[0];
  const ronde_tensor input = tensor_of(in, &rows, 1, RONDE_F64);
  ronde_operation_options options = named("exchanged", kSet);
  ronde_work work = NULL;
  options.splits = splits;
  options.split_count = all_ranks();
  CHECK_OK(ronde_alltoall(&input, NULL, &options, &work));
  memset(splits, 0, sizeof(splits));
  CHECK_OK(ronde_work_wait(work, -1));
  CHECK_OK(ronde_work_splits(work, received));
  for (int from = 0; from < all_ranks(); ++from) CHECK(received[from] == from + 1);
  CHECK_OK(ronde_work_free(work));
}

/* The receives are posted in another order than the sends. */
CASE_ON(2, messages) {
  const int previous = (own_rank() + all_ranks() - 1) % all_ranks();
  double numbers[4] = {-1, -1, own_rank(), 1}; /* two to receive and two to send */
  ronde_work works[4];
  for (int i = 0; i < 4; ++i) {
    ronde_tensor tensor = tensor_of(&numbers[i], NULL, 0, RONDE_F64);
    ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
    options.tag = i == 0 || i == 3 ? 6 : 5;
    options.peer = i == 0 ? RONDE_ANY : i == 1 ? previous : (own_rank() + 1) % all_ranks();
    CHECK_OK(i < 2 ? ronde_recv(NULL, &tensor, &options, &works[i])
                   : ronde_send(&tensor, NULL, &options, &works[i]));
  }
  for (int i = 0; i < 4; ++i) {
    int source = previous;
    CHECK_OK(ronde_work_wait(works[i], -1));
    if (i < 2) CHECK_OK(ronde_work_source(works[i], &source));
    CHECK(source == previous);
    CHECK_OK(ronde_work_free(works[i]));
  }
  CHECK(numbers[0] == 1 && numbers[1] == previous);
}

/* In a set of its own, so that the ranks can still meet. */
CASE_ON(2, a_join_tells_the_last_rank) {
  const uint32_t set = add_set_of_all();
  int last = -1;
  ronde_work joined = NULL;
  if (own_rank() == 0) CHECK_OK(ronde_join(set, &joined));
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

enum { kMost = 24 };
static double results[kMost];

/* Rank 0 brings more rows than its peers. On one rank, another one each time, the memory lacks one
 * row, and nothing is written. The others get their results. */
CASE(results_of_more_rows_than_expected) {
  const double values[] = {1, 2, 3};
  const int64_t rows = own_rank() == 0 ? 3 : 2;
  const int64_t result_rows = 1 + 2 * all_ranks();
  const ronde_tensor in = tensor_of(values, &rows, 1, RONDE_F64);
  const ronde_operation_options options = named("gathered", kSet);
  char part[96];
  snprintf(part, sizeof(part), "'gathered': the result has %d elements [%d], and out has room for",
           (int)result_rows, (int)result_rows);
  for (int short_of_room = 0; short_of_room < all_ranks(); ++short_of_room) {
    const int lacks = own_rank() == short_of_room;
    ronde_tensor out = room_for(results, result_rows - lacks, RONDE_F64);
    ronde_work work = NULL;
    for (int i = 0; i < kMost; ++i) results[i] = -5;
    CHECK_OK(ronde_allgather(&in, &out, &options, &work));
    CHECK(finish(work) == (lacks ? RONDE_E_TOO_SMALL : RONDE_OK));
    if (lacks) CHECK_LAST_ERROR(part);
    for (int i = 0; i < kMost; ++i) CHECK((results[i] == -5) == (lacks || i >= result_rows));
  }
  check_job_continues();
}

/* The memory of the program's for a result whose size only the ranks together know. */
struct allocator {
  int64_t rows;
  int calls;
  void* memory;
};

static void* allocate(void* context, const int64_t* shape, int dims) {
  struct allocator* const allocator = context;
  CHECK(dims == 2 && shape[1] == 2);
  allocator->rows = shape[0];
  ++allocator->calls;
  return allocator->memory;
}

CASE(results_that_the_program_allocates) {
  double values[kMost] = {1};
  const int64_t shape[] = {own_rank() + 1, 2};
  const ronde_tensor in = tensor_of(values, shape, 2, RONDE_F64);
  ronde_tensor out = room_for(results, kMost, RONDE_F64);
  struct allocator allocator = {0, 0, results};
  ronde_operation_options options = named("allocated", kSet);
  ronde_work work = NULL;
  void* data = NULL;
  options.allocate = allocate;
  options.allocate_context = &allocator;
  CHECK_OK(ronde_allgather(&in, NULL, &options, &work));
  CHECK_OK(ronde_work_wait(work, -1));
  CHECK_OK(ronde_work_output(work, &data, NULL, NULL, NULL));
  CHECK(data == results && results[0] == 1 && allocator.calls == 1);
  CHECK(allocator.rows == all_ranks() * (all_ranks() + 1) / 2);
  CHECK_OK(ronde_work_free(work));
  if (own_rank() == 0) allocator.memory = NULL;
  CHECK_OK(ronde_allgather(&in, NULL, &options, &work));
  CHECK(finish(work) == (own_rank() == 0 ? RONDE_E_OUT_OF_MEMORY : RONDE_OK));
  if (own_rank() == 0) CHECK_LAST_ERROR("allgather 'allocated': rank 0 has no memory");
  CHECK_INVALID("whose out is NULL", ronde_allgather(&in, &out, &options, &work));
  CHECK_INVALID("whose out is NULL", ronde_allreduce(&in, &out, &options, &work));
  check_job_continues();
}
