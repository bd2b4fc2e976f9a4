/* SPDX-License-Identifier: Apache-2.0 */
/* Results that have more elements than the caller's memory has room for. */
#include "check.h"

#define SUITE "capacity"
enum { kMost = 64 };

static double results[kMost];

static void forget_results(void) {
  for (int i = 0; i < kMost; ++i) results[i] = -5;
}

static void check_untouched_from(int64_t first) {
  for (int64_t i = first; i < kMost; ++i) CHECK(results[i] == -5);
}

/* On one rank, another one each time, the memory lacks one row; the others get their results.
 * Repeated, as the ranks agree in another way on an operation that is in the response cache. */
static void lack_a_row(start_fn start, const ronde_tensor* in, int64_t result_rows,
                       const ronde_operation_options* options) {
  const int64_t width = in->shape[1];
  for (int round = 0; round < 3; ++round) {
    const int lacks = own_rank() == round % all_ranks();
    ronde_tensor out = room_for(results, (result_rows - lacks) * width, in->dtype);
    ronde_work work = NULL;
    char part[96];
    forget_results();
    CHECK_OK(start(in, &out, options, &work));
    const int status = finish(work);
    check_untouched_from(lacks ? 0 : result_rows * width);
    CHECK(status == (lacks ? RONDE_E_TOO_SMALL : RONDE_OK));
    snprintf(part, sizeof(part), "'%s': the result has %d elements [%d, %d], and out has room for",
             options->name, (int)(result_rows * width), (int)result_rows, (int)width);
    if (lacks) CHECK_LAST_ERROR(part);
    if (!lacks) CHECK(results[0] != -5 && results[result_rows * width - 1] != -5);
  }
}

/* Rank 0 brings more rows than its peers, and sends them to the last rank. */
CASE(more_rows_than_expected) {
  double values[kMost] = {1};
  int64_t splits[4] = {1, 1, 1, 1};
  int64_t shape[] = {own_rank() == 0 ? 5 : 2, 2};
  const int64_t peers = all_ranks() - 1;
  ronde_tensor in = tensor_of(values, shape, 2, RONDE_F64);
  ronde_operation_options options = named("gathered", kSet);
  lack_a_row(ronde_allgather, &in, 5 + 2 * peers, &options);
  options = named("exchanged", kSet);
  if (own_rank() == 0) splits[peers] = 4;
  shape[0] = all_ranks() + (own_rank() == 0 ? 3 : 0);
  options.splits = splits;
  options.split_count = all_ranks();
  lack_a_row(ronde_alltoall, &in, all_ranks() + (own_rank() == peers ? 3 : 0), &options);
  options = named("scattered", kSet);
  shape[0] = 2 * all_ranks() + 1;
  lack_a_row(ronde_reducescatter, &in, own_rank() == 0 ? 3 : 2, &options);
  check_job_continues();
}

/* Where the rank knows the size beforehand, the call fails and starts nothing. */
CASE(results_as_large_as_the_input) {
  double values[2] = {1, 2};
  const int64_t two = 2;
  const ronde_tensor in = tensor_of(values, &two, 1, RONDE_F64);
  ronde_tensor out = room_for(results, 1, RONDE_F64);
  ronde_work work = NULL;
  forget_results();
  CHECK_FAILS(RONDE_E_TOO_SMALL, "the result has 2 elements [2], and out has room for 1",
              ronde_allreduce(&in, &out, NULL, &work));
  CHECK_FAILS(RONDE_E_TOO_SMALL, "room for 1", ronde_broadcast(&in, &out, NULL, &work));
  out.shape = &two;
  out.dims = 1;
  CHECK_FAILS(RONDE_E_TOO_SMALL, "room for 1", ronde_recv(NULL, &out, NULL, &work));
  CHECK(work == NULL);
  check_untouched_from(0);
  check_job_continues();
}
