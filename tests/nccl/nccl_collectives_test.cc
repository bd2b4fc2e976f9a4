// SPDX-License-Identifier: Apache-2.0
// Operations over an NCCL that is a fake, beside the same over shared memory, whose bits they have
// wherever the design says so.
#include <barrier>
#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/gpu/nccl_ranks.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/harness/sanitizers.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

struct SetUp {
  int ranks;
  bool exact = false;
};

void run_exercise(Exercise exercise) {
  const SetUp set_up = GENERATE(SetUp{1}, SetUp{2}, SetUp{3}, SetUp{2, true}, SetUp{3, true});
  CAPTURE(set_up.ranks, set_up.exact);
  if (kIsSanitized && set_up.ranks < 3) return;
  NcclRanks machine(set_up.ranks);
  machine.options.exact = set_up.exact;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    exercise(runtime, gpu);
    if (exercise != exercise_allreduces || set_up.ranks != 2) return;
    for (const char* const name : {"chunks_in_order", "packed_chunks", "direct_chunks"}) {
      check(nccl_counter(runtime, name) > 0, name);
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

TEST_CASE("nccl with one rank carries out each collective, and is no mere copy") {
  NcclRanks machine(1);
  machine.run(exercise_nccl_alone);
}

TEST_CASE("nccl averages halves whose sum is beyond them") {
  NcclRanks machine(2);
  machine.run([](Runtime& runtime, ProgramGpu& gpu) {
    const Bytes large = {std::byte{0x53}, std::byte{0x7b}};  // 60000 as f16
    const GpuTensor tensor(gpu, large);
    Request request;
    request.dtype = DataType::F16;
    request.shape = {1};
    request.op = ReduceOp::Average;
    gpu.place(request);
    request.input = request.output = tensor.data();
    runtime.run(std::move(request));
    check(tensor.read() == large, "the average of equal numbers is that number");
  });
}

TEST_CASE("nccl sums, averages and scales a single tensor where it is, without a kernel") {
  struct Row {
    DataType dtype;
    ReduceOp op;
    double prescale, postscale;
    double expected;         ///< of 1 and 2
    bool in_kernel = false;  ///< a half type does not hold the factor
  };
  const Row rows[] = {{DataType::BF16, ReduceOp::Sum, 1.0, 1.0, 3.0},
                      {DataType::BF16, ReduceOp::Average, 1.0, 1.0, 1.5},
                      {DataType::F16, ReduceOp::Average, 4.0, 0.5, 3.0},
                      {DataType::BF16, ReduceOp::Sum, 1.0 / 3, 1.0, 1.0, true},
                      {DataType::F16, ReduceOp::Average, 1.0, 2.0 / 3, 1.0, true},
                      {DataType::F32, ReduceOp::Sum, 0.25, 1.0, 0.75},
                      {DataType::F64, ReduceOp::Average, 1.0, 1.0, 1.5}};
  const bool is_exact = GENERATE(false, true);
  CAPTURE(is_exact);
  NcclRanks machine(2);
  machine.options.exact = is_exact;
  std::barrier together(2);
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    for (const Row& row : rows) {
      TensorValues values(row.dtype, 900);
      values.fill(runtime.topology().rank + 1);
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
      values.fill(row.expected);
      check(tensor.read() == bytes_of(values),
            std::string(to_string(row.op)) + " of " + std::string(to_string(row.dtype)));
    }
  });
  CHECK((machine.cuda.calls("ncclRedOpCreatePreMulSum") > 0) == !is_exact);
}

TEST_CASE("nccl has one communicator for each stream and for each pair that sends") {
  const int ranks = GENERATE(2, 3);
  NcclRanks machine(ranks);
  machine.options.streams = 2;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    exercise_messages(runtime, gpu);  // before any collective
    for (int step = 0; step < 5; ++step) sum_on_gpu(runtime, gpu, 700);
    exercise_messages(runtime, gpu);
    const auto pairs = static_cast<std::uint64_t>(ranks - 1);
    check_counters(runtime, {{"communicators", pairs + 2}}, "nccl");
  });
}

TEST_CASE("nccl messages in a ring do not wait for each other in a circle") {
  NcclRanks machine(3);
  machine.run([](Runtime& runtime, ProgramGpu& gpu) {
    const int rank = runtime.topology().rank;
    GpuSum sent(runtime, gpu, 50);
    GpuSum received(runtime, gpu, 50);
    // Each pair connects with its first message: from 0 to 1, from 1 to 2, and from 2 to 0.
    const Work sending = runtime.submit(sent.message((rank + 1) % 3, true));
    const Work receiving = runtime.submit(received.message((rank + 2) % 3, false));
    sending.wait();
    receiving.wait();
    received.check_values(static_cast<float>((rank + 2) % 3 + 1), "what the one before has sent");
  });
}

TEST_CASE("nccl messages of two ranks leave the turns of the others' collectives as they are") {
  NcclRanks machine(3);
  machine.options.streams = 3;
  machine.run([](Runtime& runtime, ProgramGpu& gpu) {
    const int rank = runtime.topology().rank;
    for (int step = 0; step < 7; ++step) {
      // Another number of messages for each rank.
      GpuSum values(runtime, gpu, 9);
      for (int i = 0; rank < 2 && i < step; ++i) runtime.run(values.message(1 - rank, rank == 0));
      if (rank < 2 && step > 0) values.check_values(1.0F, "what rank 0 has sent");
      sum_on_gpu(runtime, gpu, 100);
    }
  });
}

TEST_CASE("nccl serves the others where a rank has no memory for its result") {
  NcclRanks machine(3);
  machine.run(exercise_missing_results);
}

}  // namespace
