// SPDX-License-Identifier: Apache-2.0
// Reductions over an NCCL that is a fake: against numbers in double precision, and against shared
// memory, whose bits they have wherever the design says so.
#include <catch2/catch.hpp>

#include "nccl_jobs.h"
#include "nccl_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// `every`: so many-th job.
void check_all(int ranks, std::size_t every, std::size_t most_inputs = 64,
               const FakeNccl::Options& nccl = {}) {
  for (const Collective kind : {Collective::Allreduce, Collective::Reducescatter}) {
    NcclRanks machine(ranks, nccl);
    machine.options.most_inputs = most_inputs;
    const std::vector<Job> jobs = chosen(all_jobs(kind, ranks), every);
    machine.run([&](int rank, Runtime& runtime) {
      ProgramGpu gpu(machine.cuda.api(), machine.device(rank).index);
      check_jobs(jobs, gpu, runtime, true, ranks <= 2);
      check_jobs(chosen(jobs, 7), gpu, runtime, false, ranks <= 2);
      if (every > 1) return;
      check(counter_of(runtime, "nccl", "chunks_in_order") > 0, "some are reduced by the ranks");
      check(counter_of(runtime, "nccl", "packed_chunks") > 0, "some are packed");
      check(counter_of(runtime, "nccl", "direct_chunks") > 0, "some are not");
    });
  }
}

TEST_CASE("nccl reduces every dtype by every op on one rank") {
  check_all(1, 3);
}

TEST_CASE("nccl reduces every dtype by every op on two ranks with the bits of shared memory") {
  check_all(2, 1);
}

TEST_CASE("nccl reduces every dtype by every op on three ranks") {
  check_all(3, 5);
}

TEST_CASE("nccl reduces for more ranks than a kernel takes inputs, in rounds with the same bits") {
  check_all(3, 7, 2);
  check_all(4, 7, 3);
}

TEST_CASE("nccl that finishes each call at once needs nobody to ask") {
  check_all(2, 5, 64, {.looks = 0});
}

TEST_CASE("nccl averages halves whose sum is beyond them") {
  NcclRanks machine(2);
  machine.run([&](int rank, Runtime& runtime) {
    Buffers buffers(DataType::F16, 3);
    buffers.input.fill(60000);
    Request request = request_on(machine.device(rank), Collective::Allreduce, "large", buffers);
    request.op = ReduceOp::Average;
    runtime.run(request);
    check(buffers.output == buffers.input, "the average of equal numbers is that number");
  });
}

}  // namespace
