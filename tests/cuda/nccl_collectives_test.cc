// SPDX-License-Identifier: Apache-2.0
// Operations over an NCCL that is a fake, beside the same over shared memory, whose bits they have
// wherever the design says so.
#include <catch2/catch.hpp>
#include <utility>

#include "gpu_exercise.h"
#include "nccl_ranks.h"
#include "tests/support/sanitizers.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr auto kAll = {exercise_allreduces, exercise_wire_dtypes, exercise_exchanges,
                       exercise_messages, exercise_sizes};

TEST_CASE("nccl's collectives and messages have the bits of shared memory where order allows it") {
  const int ranks = GENERATE(range(plain_or_sanitized(1, 3), 4));
  const auto exercise = GENERATE(values(kAll));
  CAPTURE(ranks);
  NcclRanks machine(ranks);
  machine.run(exercise);
}

TEST_CASE("nccl with one rank carries out each collective, and is no mere copy") {
  NcclRanks machine(1);
  machine.run(exercise_nccl_alone);
}

TEST_CASE("nccl packs some chunks, sums others where they are, and leaves some to the ranks") {
  NcclRanks machine(2);
  machine.run([](Runtime& runtime, ProgramGpu& gpu) {
    exercise_allreduces(runtime, gpu);
    for (const char* const name : {"chunks_in_order", "packed_chunks", "direct_chunks"}) {
      check(nccl_counter(runtime, name) > 0, name);
    }
  });
}

TEST_CASE("nccl reduces for more ranks than a kernel takes inputs, in rounds with the same bits") {
  const auto [ranks, most_inputs] = GENERATE(std::pair(3, 2), std::pair(4, 3));
  const auto exercise = GENERATE(exercise_allreduces, exercise_wire_dtypes, exercise_exchanges);
  CAPTURE(ranks);
  NcclRanks machine(ranks);
  machine.options.most_inputs = static_cast<std::size_t>(most_inputs);
  machine.run(exercise);
}

TEST_CASE("nccl that finishes each call at once needs nobody to ask") {
  const auto exercise = GENERATE(exercise_allreduces, exercise_exchanges);
  NcclRanks machine(2, {.looks = 0});
  machine.run(exercise);
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
    request.device = {.kind = DeviceKind::Cuda, .index = gpu.context->index()};
    request.stream = gpu.stream.handle();
    request.input = request.output = tensor.data();
    runtime.run(std::move(request));
    check(tensor.read() == large, "the average of equal numbers is that number");
  });
}

TEST_CASE("nccl has one communicator for each stream and for each pair that sends") {
  const int ranks = GENERATE(2, 3);
  NcclRanks machine(ranks);
  machine.options.streams = 2;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    exercise_messages(runtime, gpu);  // before any collective
    for (int step = 0; step < 2; ++step) sum_on_gpu(runtime, gpu, 700);
    exercise_messages(runtime, gpu);
    const auto pairs = static_cast<std::uint64_t>(ranks - 1);
    check_counters(runtime, {{"communicators", pairs + 2}}, "nccl");
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
      for (int i = 0; rank < 2 && i < step; ++i) {
        Request message = values.request();
        message.kind = rank == 0 ? Collective::Send : Collective::Recv;
        message.peer = 1 - rank;
        if (rank == 0) message.output = nullptr;
        if (rank == 1) message.input = nullptr;
        runtime.run(std::move(message));
      }
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
