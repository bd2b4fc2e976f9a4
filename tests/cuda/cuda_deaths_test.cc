// SPDX-License-Identifier: Apache-2.0
// A rank with a GPU that leaves or dies: the others get a GroupError, and nothing of theirs is
// touched afterwards.
#include <barrier>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "gpu_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 20'000;

/// Sums until one dies with that rank, and its memory is handed back.
void sum_to_death(Runtime& runtime, ProgramGpu& gpu, int rank) {
  std::weak_ptr<void> memory;
  const Death death = death_of([&] {
    for (int step = 0; step < 20; ++step) start_owned(runtime, gpu, kCount, memory).wait();
  });
  check(death.rank == rank, "rank " + std::to_string(rank) + " is to blame: " + death.text);
  check(memory.expired(), "the memory is handed back");
}

}  // namespace

TEST_CASE("cuda deaths: a rank that leaves before an operation fails those that wait for it") {
  FakeMachine machine;
  const CudaOptions options = cuda_options_of(machine, GENERATE(kIpc, kStaged));
  const bool has_met = GENERATE(true, false);
  std::barrier together(3);
  run_gpu_ranks_unchecked(machine, 3, 1, options,
                          [&](Runtime& runtime, ProgramGpu& gpu, const Kill&) {
                            if (has_met) sum_on_gpu(runtime, gpu, kCount);
                            together.arrive_and_wait();
                            if (runtime.topology().rank != 1) sum_to_death(runtime, gpu, 1);
                          });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda deaths: a rank that leaves within an operation whose input is late") {
  FakeMachine machine;
  CudaOptions options = cuda_options_of(machine, GENERATE(kIpc, kDirect, kStaged));
  options.ipc_handover = IpcHandover::Events;
  INFO("ipc " << options.ipc << ", mapped from " << options.ipc_direct_bytes);
  std::vector<std::unique_ptr<ProgramGpu>> gpus;
  for (int rank = 0; rank < 2; ++rank) {
    gpus.push_back(std::make_unique<ProgramGpu>(machine.cuda.api(), 0));
  }
  std::vector<std::weak_ptr<void>> memory(2);
  std::barrier together(2);
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    const auto own = static_cast<std::size_t>(rank);
    ProgramGpu& gpu = *gpus[own];
    Runtime runtime(gpu_options_of(group, rank, options));
    sum_on_gpu(runtime, gpu, kCount);
    if (rank == 1) machine.cuda.hold(gpu.stream.handle());
    const Work work = start_owned(runtime, gpu, kCount, memory[own]);
    if (options.ipc) work.wait_on(gpu.stream.handle());
    while (cuda_counter(runtime, options.ipc ? "ipc_operations" : "staged_operations") < 2) {
      std::this_thread::yield();
    }
    check(!work.done(), "its input is late");
    together.arrive_and_wait();
    if (rank == 1) return;
    const Death death = death_of([&] { work.wait(); });
    check(death.rank == 1, "rank 1 has left: " + death.text);
    // By ipc this GPU still waits for the other's.
    check(memory[own].expired() != options.ipc, "memory that nothing uses is handed back");
  });
  CHECK_FALSE(memory[1].expired());
  // What was queued runs on, in memory that is still there.
  machine.cuda.release_all();
  for (const auto& gpu : gpus) {
    const cuda::Current current(*gpu->context);
    CHECK(gpu->context->api().stream_synchronize(gpu->stream.handle()) == cuda::kSuccess);
  }
}

TEST_CASE("cuda deaths: a rank that dies between operations fails the next one of the others") {
  FakeMachine machine;
  const CudaOptions options = cuda_options_of(machine, GENERATE(kIpc, kDirect, kStaged));
  std::barrier together(3);
  run_gpu_ranks_unchecked(machine, 3, 1, options,
                          [&](Runtime& runtime, ProgramGpu& gpu, const Kill& kill) {
                            const int rank = runtime.topology().rank;
                            GpuSum sum(runtime, gpu, kCount);
                            for (int step = 0; step < 3; ++step) {
                              sum.write(static_cast<float>(rank + 1));
                              sum.check_result(sum.start());
                            }
                            together.arrive_and_wait();
                            if (rank == 2) return kill();
                            sum_to_death(runtime, gpu, 2);
                          });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda deaths: a rank that dies while the others are at a handover") {
  FakeMachine machine({.devices = 2});
  const CudaOptions options = cuda_options_of(machine, GENERATE(kIpc, kStaged));
  const int nth = GENERATE(0, 1, 3, 7);
  INFO("ipc " << options.ipc << ", launch " << nth);
  std::barrier together(3);
  run_gpu_ranks_unchecked(
      machine, 3, 2, options, [&](Runtime& runtime, ProgramGpu& gpu, const Kill&) {
        sum_on_gpu(runtime, gpu, kCount);
        together.arrive_and_wait();
        if (runtime.topology().rank == 1) {
          machine.cuda.fail_on(1, "cuLaunchKernel", cuda::kInvalidValue, 1, nth);
        }
        sum_to_death(runtime, gpu, 1);
      });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}
