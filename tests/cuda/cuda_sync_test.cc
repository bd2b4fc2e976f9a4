// SPDX-License-Identifier: Apache-2.0
// How ranks that reach each other by CUDA IPC wait for each other: by flags or by kernels.
#include <barrier>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <thread>

#include "backends/gpu/kernels/segments.h"
#include "tests/support/gpu/gpu_ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 20'000;

}  // namespace

TEST_CASE("cuda ipc sync: kernels where each rank has a GPU, flags where two share one") {
  const int devices = GENERATE(1, 2, 3);
  FakeMachine machine({.devices = devices});
  const IpcSync expected = devices == 3 ? IpcSync::Kernels : IpcSync::Flags;
  run_gpu_ranks(machine, 3, devices, cuda_options_of(machine),
                [&](Runtime& runtime, ProgramGpu& gpu) {
                  for (int step = 0; step < 5; ++step) sum_on_gpu(runtime, gpu, kCount);
                  check_syncs(runtime, expected);
                });
}

TEST_CASE("cuda ipc sync: a process set uses flags, as other ranks may be on its GPUs") {
  FakeMachine machine({.devices = 2});
  run_gpu_ranks(machine, 4, 2, cuda_options_of(machine), [](Runtime& runtime, ProgramGpu& gpu) {
    const ProcessSet set = runtime.add_process_set({0, 1});
    if (runtime.topology().rank < 2) sum_on_gpu(runtime, gpu, kCount, set);
    runtime.run(barrier_request());
  });
  CHECK(machine.cuda.calls("cuStreamBatchMemOp_v2") > 0);
}

TEST_CASE("cuda ipc sync: flags that go past the largest number are ahead of those before it") {
  using cuda::kernels::has_reached;
  CHECK(has_reached(5, 5));
  CHECK(has_reached(6, 5));
  CHECK_FALSE(has_reached(4, 5));
  CHECK(has_reached(2, 0xffff'fffe));
  CHECK_FALSE(has_reached(0xffff'fffe, 2));
  CHECK(has_reached(0x3fff'ffff, 0xffff'ffff));
}

namespace {

constexpr int kRanks = 3;

/// How the work ended, which rank `lost` is to blame for.
Death check_death(const Work& work, int lost) {
  const Death death = death_of([&] { work.wait(); });
  check(death.rank == lost, "rank " + std::to_string(lost) + " is lost: " + death.text);
  return death;
}

}  // namespace

TEST_CASE("cuda ipc sync: survivors' GPUs do not wait for what a dead rank had queued") {
  const Way way = GENERATE(Way{.name = "flags", .sync = IpcSync::Flags},
                           Way{.name = "kernels", .sync = IpcSync::Kernels});
  FakeMachine machine({.devices = kRanks});
  CudaOptions options = cuda_options_of(machine, way);
  options.ipc_direct_bytes = GENERATE(0U, 1U);
  INFO(way.name << ", mapped from " << options.ipc_direct_bytes);
  std::barrier together(kRanks);
  run_gpu_ranks_unchecked(
      machine, kRanks, kRanks, options, [&](Runtime& runtime, ProgramGpu& gpu, const Kill& kill) {
        const int rank = runtime.topology().rank;
        std::weak_ptr<void> own;
        sum_on_gpu(runtime, gpu, kCount);
        // The dead rank's GPU never comes to its part.
        if (rank == 2) machine.cuda.hold(gpu.stream.handle());
        const Work work = start_owned(runtime, gpu, kCount, own);
        work.wait_on(gpu.stream.handle());
        check(!work.done(), "a rank's part is late");
        together.arrive_and_wait();
        if (rank == 2) return kill();
        check_death(work, 2);
        // All that this rank has queued ends, and so does what the program has queued behind it.
        const cuda::Current current(*gpu.context);
        check(gpu.context->api().stream_synchronize(gpu.stream.handle()) == cuda::kSuccess, "ends");
        check(own.expired(), "the memory is handed back");
      });
  machine.cuda.release_all();
}

TEST_CASE("cuda ipc sync: a rank that dies within the trial leaves nothing waiting") {
  const auto [sync, call] = GENERATE(std::pair(IpcSync::Flags, "cuStreamBatchMemOp_v2"),
                                     std::pair(IpcSync::Kernels, "cuLaunchKernel"));
  INFO(call);
  FakeMachine machine({.devices = kRanks});
  CudaOptions options = cuda_options_of(machine);
  options.ipc_sync = sync;
  options.ipc_patience = std::chrono::minutes(1);
  std::barrier together(kRanks);
  run_gpu_ranks_unchecked(machine, kRanks, kRanks, options,
                          [&, call = call](Runtime& runtime, ProgramGpu& gpu, const Kill& kill) {
                            const bool dies = runtime.topology().rank == 2;
                            // What the dead rank tells in the trial never comes: behind the streams
                            // of the resources, for what is copied up, and for what is written
                            // before.
                            if (dies) machine.cuda.hold_new(2, 3);
                            together.arrive_and_wait();
                            GpuSum sum(runtime, gpu, kCount);
                            const Work work = sum.start();
                            // Each rank tells the others, and waits for them.
                            while (machine.cuda.calls(call) < 2 * kRanks) std::this_thread::yield();
                            if (dies) return kill();
                            check_death(work, 2);
                          });
  CHECK(machine.cuda.contexts_on(0) == 0);
  CHECK(machine.cuda.contexts_on(1) == 0);
  // The dead rank's trial hangs, and what it uses is still there.
  CHECK(machine.cuda.contexts_on(2) > 0);
  machine.cuda.release_all();
}

TEST_CASE("cuda ipc sync: waits of all sets end at once, as one may be behind another") {
  FakeMachine machine({.devices = kRanks});
  CudaOptions options = cuda_options_of(machine);
  options.ipc_sync = IpcSync::Flags;
  std::barrier together(kRanks);
  run_gpu_ranks_unchecked(
      machine, kRanks, kRanks, options, [&](Runtime& runtime, ProgramGpu& gpu, const Kill& kill) {
        const int rank = runtime.topology().rank;
        const ProcessSet pair = runtime.add_process_set({0, 1});
        std::weak_ptr<void> of_pair, of_all;
        // Both kinds are connected, before a GPU never comes to its part.
        if (rank < 2) sum_on_gpu(runtime, gpu, kCount, pair);
        sum_on_gpu(runtime, gpu, kCount);
        if (rank == 1) machine.cuda.hold(gpu.stream.handle());
        Work of_two;
        if (rank < 2) {
          of_two = start_owned(runtime, gpu, kCount, of_pair, pair);
          of_two.wait_on(gpu.stream.handle());
        }
        // Of rank 0 behind that of the two.
        const Work work = start_owned(runtime, gpu, kCount, of_all);
        work.wait_on(gpu.stream.handle());
        together.arrive_and_wait();
        if (rank == 1) return kill();
        const Death death = check_death(work, 1);
        if (rank == 0) check(death_of([&] { of_two.wait(); }) == death, "so it is of the two");
        check(of_pair.expired() && of_all.expired(), "the memory of both is handed back");
      });
  machine.cuda.release_all();
}
