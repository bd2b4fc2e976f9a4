// SPDX-License-Identifier: Apache-2.0
// Operations over an NCCL that is a fake, beside the same over shared memory, whose bits they have
// wherever the design says so.
#include <barrier>
#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/gpu/gpu_ranks.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/harness/sanitizers.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

void run_exercise(Exercise exercise) {
  const auto [ranks, is_exact] =
      GENERATE(table<int, bool>({{1, false}, {2, false}, {3, false}, {2, true}, {3, true}}));
  CAPTURE(ranks, is_exact);
  if (kIsSanitized && ranks < 3) return;
  NcclRanks machine(ranks);
  machine.options.exact = is_exact;
  const bool counts = exercise == exercise_allreduces && !is_exact;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    exercise(runtime, gpu);
    if (!counts) return;
    for (const char* const name : {"chunks_in_order", "packed_chunks", "direct_chunks"}) {
      check(counter_of(runtime, "nccl", name) > 0, name);
    }
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const auto& [what, exercise] : kExercises) {
    add_case("nccl: " + what + " have the bits of shared memory where order allows it", "",
             [exercise = exercise] { run_exercise(exercise); });
  }
  return true;
}();

TEST_CASE("nccl sums and averages a single tensor where it is, without a kernel") {
  struct Row {
    DataType dtype;
    ReduceOp op;
    double prescale, postscale;
    double expected;         ///< of 1 and 2, times `scale`
    bool in_kernel = false;  ///< by which elements are scaled
    double scale = 1.0;
  };
  constexpr double kLarge = 30000.0;  // the sum is beyond f16
  const Row rows[] = {{DataType::BF16, ReduceOp::Sum, 1.0, 1.0, 3.0},
                      {DataType::BF16, ReduceOp::Average, 1.0, 1.0, 1.5},
                      {DataType::F16, ReduceOp::Average, 4.0, 0.25, 1.5},
                      {DataType::F16, ReduceOp::Average, 1.0, 1.0, 1.5, false, kLarge},
                      {DataType::F16, ReduceOp::Average, 4.0, 0.5, 3.0},  // a factor of 1
                      {DataType::BF16, ReduceOp::Sum, 1.0 / 3, 1.0, 1.0, true},
                      {DataType::F16, ReduceOp::Average, 1.0, 2.0 / 3, 1.0, true},
                      {DataType::F32, ReduceOp::Sum, 0.25, 1.0, 0.75, true},
                      {DataType::F64, ReduceOp::Average, 1.0, 1.0, 1.5}};
  const bool is_exact = GENERATE(false, true);
  CAPTURE(is_exact);
  NcclRanks machine(2);
  machine.options.exact = is_exact;
  std::barrier together(2);
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    for (const Row& row : rows) {
      TensorValues values(row.dtype, 900);
      values.fill((runtime.topology().rank + 1) * row.scale);
      const GpuTensor tensor(gpu, bytes_of(values));
      Request request;
      request.dtype = row.dtype;
      request.shape = {900};
      request.op = row.op;
      request.prescale = row.prescale;
      request.postscale = row.postscale;
      gpu.place(request);
      request.input = request.output = tensor.data();
      together.arrive_and_wait();
      const int before = machine.cuda.calls("cuLaunchKernel");
      together.arrive_and_wait();
      runtime.run(std::move(request));
      together.arrive_and_wait();
      check((machine.cuda.calls("cuLaunchKernel") > before) == (is_exact || row.in_kernel),
            "kernels of Ronde's");
      values.fill(row.expected * row.scale);
      check(tensor.read() == bytes_of(values),
            std::string(to_string(row.op)) + " of " + std::string(to_string(row.dtype)));
    }
  });
}

TEST_CASE(
    "nccl messages in a ring and between two are in one order with collectives, by one "
    "communicator") {
  NcclRanks machine(3);
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    const int rank = runtime.topology().rank;
    check(machine.cuda.calls("ncclCommInitRankConfig") == 3, "connected at the start");
    for (int step = 0; step < 5; ++step) {
      // All in flight at once, and submitted in another order on each rank.
      GpuSum sum(runtime, gpu, 100), sent(runtime, gpu, 50), received(runtime, gpu, 50);
      GpuSum between(runtime, gpu, 9);
      std::vector<Work> works;
      if (rank == 0) works.push_back(sum.start("sum"));
      for (int i = 0; rank < 2 && i < step; ++i) {
        works.push_back(runtime.submit(between.message(1 - rank, rank == 0)));
        works.back().wait();  // one buffer
      }
      works.push_back(runtime.submit(sent.message((rank + 1) % 3, true)));
      if (rank == 1) works.push_back(sum.start("sum"));
      works.push_back(runtime.submit(received.message((rank + 2) % 3, false)));
      if (rank == 2) works.push_back(sum.start("sum"));
      for (const Work& work : works) work.wait();
      sum.check_values(6.0F, "a sum");
      received.check_values(static_cast<float>((rank + 2) % 3 + 1), "what the one before has sent");
      if (rank < 2 && step > 0) between.check_values(1.0F, "what rank 0 has sent");
    }
  });
  CHECK(machine.cuda.calls("ncclCommInitRankConfig") == 3);
}

}  // namespace
