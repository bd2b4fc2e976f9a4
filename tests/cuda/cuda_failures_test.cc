// SPDX-License-Identifier: Apache-2.0
// GPUs where something fails: the way falls back, with one line, or the group ends with a
// GroupError; and everything is given back. If a rank leaves or dies, the memory of the others is
// not touched afterwards.
#include <barrier>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/gpu/gpu_ranks.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 20'000;
constexpr FakeCuda::Options kTwoGpus{.devices = 2};
constexpr const char* kFirstGpu = "GPU-01010101-0101-0101-0101-010101010101";

/// Why CUDA IPC is not used: an option of the machine, or a call that fails on a GPU.
struct Obstacle {
  const char* text;  ///< of the line
  FakeCuda::Options machine = kTwoGpus;
  const char* symbol = nullptr;
  int device = 1;
  cuda::Result result = cuda::kMapFailed;
  int skipped = 0;
  std::vector<std::string> visible_devices = {};
};

const std::vector<Obstacle> kObstacles = {
    {.text = "rank 1: CUDA failed while mapping memory of rank 0: cuIpcOpenMemHandle_v2",
     .symbol = "cuIpcOpenMemHandle_v2"},
    {.text = "rank 1: CUDA failed while signalling the other ranks: cuStreamBatchMemOp_v2",
     .symbol = "cuStreamBatchMemOp_v2",
     .result = cuda::kNotSupported},
    {.text = "rank 1: CUDA failed while waiting for the other ranks: cuStreamBatchMemOp_v2",
     .symbol = "cuStreamBatchMemOp_v2",
     .result = cuda::kNotSupported,
     .skipped = 1},
    {.text = "rank 1: CUDA failed while pinning",
     .symbol = "cuMemHostRegister_v2",
     .result = cuda::kNotSupported},
    {.text = "rank 0: the memory of other ranks does not answer",
     .machine = {.devices = 2, .written_words_show = false}},
    {.text = "rank 0: CUDA cannot export the fusion buffer of this GPU",
     .machine = {.devices = 2, .memory_is_ipc_capable = false}},
    {.text = "rank 0: what rank 1 wrote to its GPU's memory does not show in its mapping",
     .machine = {.devices = 2, .mappings_show_memory = false}},
    {.text = "rank 0: RONDE_VISIBLE_DEVICES does not name the GPU of rank 1 (GPU-02020202-",
     .visible_devices = {kFirstGpu}},
    {.text = "rank 1: CUDA failed while writing to the fusion buffer: cuMemsetD8Async",
     .symbol = "cuMemsetD8Async",
     .result = cuda::kInvalidValue},
    // The fusion buffer has no room at first; the tensor of the program is made before.
    {.text = "rank 1: CUDA failed while allocating",
     .symbol = "cuMemAlloc_v2",
     .result = cuda::kOutOfMemory,
     .skipped = 1},
};

/// What ends a group on all ranks: a call that fails on GPU 1.
struct Fault {
  bool ipc;
  const char* symbol;
  int skipped;  ///< calls
  const char* text;
  cuda::Result result = 700;  ///< an illegal address
};

const std::vector<Fault> kFaults = {
    {true, "cuLaunchKernel", 0, "CUDA failed while launching"},
    {true, "cuLaunchKernel", 4, "CUDA failed while launching"},
    {false, "cuLaunchKernel", 0, "CUDA failed while launching"},
    {false, "cuMemcpyAsync", 2, "CUDA failed while copying from the GPU: cuMemcpyAsync"},
    {false, "cuMemcpyAsync", 3, "CUDA failed while copying to the GPU: cuMemcpyAsync"},
    {true, "cuStreamWaitEvent", 1, "CUDA failed while"},
    {false, "cuEventRecord", 3, "CUDA failed while ordering streams: cuEventRecord"},
    {false, "cuEventQuery", 0, "CUDA failed while waiting for the GPU: cuEventQuery"},
    {true, "cuEventQuery", 2, "CUDA failed while waiting for the GPU: cuEventQuery"},
};

/// Before the first sum: what there is no memory for.
const std::vector<Fault> kLacks = {
    {true, "cuMemAlloc_v2", 0, "choose a smaller RONDE_FUSION_BYTES", cuda::kOutOfMemory},
    {false, "cuMemAlloc_v2", 0, "choose a smaller RONDE_FUSION_BYTES", cuda::kOutOfMemory},
    {false, "cuMemHostAlloc", 0, "bytes of host memory: cuMemHostAlloc", cuda::kOutOfMemory},
    {false, "cuMemHostAlloc", 1, "bytes of host memory: cuMemHostAlloc", cuda::kOutOfMemory},
    {true, "cuModuleLoadData", 0, "loading Ronde's kernels onto GPU 1: cuModuleLoadData",
     cuda::kOutOfMemory},
};

/// Two ranks with a GPU each sum until calls of the second one fail, `times` of them: before the
/// first sum, or after it.
void sum_until(const Fault& fault, int times, bool after_first) {
  CAPTURE(fault.ipc, fault.symbol, fault.skipped);
  FakeMachine machine({.devices = 2});
  CudaOptions options = cuda_options_of(machine, fault.ipc ? kIpc : kStaged);
  run_gpu_ranks_unchecked(
      machine, 2, 2, options, [&](Runtime& runtime, ProgramGpu& gpu, const Kill&) {
        if (after_first) sum_on_gpu(runtime, gpu, kCount);
        GpuSum sum(runtime, gpu, kCount);
        if (runtime.topology().rank == 1) {
          machine.cuda.fail_on(1, fault.symbol, fault.result, times, fault.skipped);
        }
        const Death death = death_of([&] {
          for (int step = 0; step < 20; ++step) sum.start().wait();
        });
        check(death.rank == 1, "rank 1 is to blame: " + death.text);
        check_contains(death.text, "rank 1");
        check_contains(death.text, fault.text);
        check_contains(death_of([&] { sum.start(); }).text, fault.text);
      });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

}  // namespace

TEST_CASE("cuda failures: what is in the way of CUDA IPC is told in one line, and data is staged") {
  const Obstacle obstacle = GENERATE(from_range(kObstacles));
  INFO(obstacle.text);
  const CapturedErrors errors;
  FakeMachine machine(obstacle.machine);
  CudaOptions options = cuda_options_of(machine);
  if (!obstacle.machine.written_words_show) options.ipc_patience = std::chrono::milliseconds(200);
  options.visible_devices = obstacle.visible_devices;
  if (obstacle.symbol != nullptr) {
    machine.cuda.fail_on(obstacle.device, obstacle.symbol, obstacle.result, 1, obstacle.skipped);
  }
  run_gpu_ranks(machine, 2, 2, options, [](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kCount);
    sum.check_result(sum.start());
    for (int step = 0; step < 3; ++step) sum_on_gpu(runtime, gpu, kCount);
    check_counters(runtime, {{"staged_operations", 4}, {"ipc_operations", 0}, {"handles_lost", 0}});
  });
  CHECK(occurrences(errors.text(), "\n") == 1);
  CHECK_THAT(errors.text(),
             Catch::Contains("[ronde rank 0] warning: CUDA IPC cannot be used, and what is on GPUs "
                             "is staged through host memory: ") &&
                 Catch::Contains(obstacle.text) &&
                 Catch::Contains("(RONDE_CUDA_IPC=0 spares the trial)"));
}

TEST_CASE("cuda failures: GPUs that are named by a UUID's beginning, or shared, are mapped") {
  const int devices = GENERATE(1, 2);
  FakeMachine machine({.devices = devices});
  CudaOptions options = cuda_options_of(machine);
  options.visible_devices = {"GPU-77777777"};
  if (devices == 2) options.visible_devices = {"GPU-77", "GPU-01", "GPU-020202"};
  run_gpu_ranks(machine, 2, devices, options, [](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    check_counters(runtime, {{"ipc_operations", 1}});
  });
}

TEST_CASE("cuda failures: what cannot be done on a GPU ends the group, and says who could not") {
  sum_until(GENERATE(from_range(kFaults)), 1, true);
}

TEST_CASE("cuda failures: without memory the group ends, and says what to do") {
  sum_until(GENERATE(from_range(kLacks)), 1000, false);
}

TEST_CASE("cuda failures: without room for a context the operation is refused at submit") {
  FakeMachine machine;
  run_gpu_ranks(machine, 2, 1, cuda_options_of(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kCount);
    runtime.run(barrier_request());
    if (runtime.topology().rank == 0) {
      machine.cuda.fail("cuDevicePrimaryCtxRetain", cuda::kOutOfMemory);
      check_contains(text_of<Error>([&] { sum.start(); }), "making a context on GPU 0");
    }
    runtime.run(barrier_request());
    sum.check_result(sum.start());
  });
}

TEST_CASE(
    "cuda failures: a second GPU of a rank, and streams of no use, are refused at submission") {
  FakeMachine machine({.devices = 2});
  std::barrier together(2);
  run_gpu_ranks(machine, 2, 1, cuda_options_of(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum first(runtime, gpu, kCount);
    const Work work = first.start();
    first.check_result(work);
    const auto check_refused = [&](const Request& request, const std::string& words) {
      check_contains(text_of<UsageError>([&] { runtime.submit(request); }), words);
    };
    ProgramGpu second(machine.cuda.api(), 1);
    check_refused(GpuSum(runtime, second, kCount).request(),
                  "a tensor is on GPU 1, but this rank uses GPU 0, that of its first tensor");
    GpuSum sum(runtime, gpu, kCount);
    const Request own = sum.request("gradient");
    Request of_thread = own;
    of_thread.stream = reinterpret_cast<void*>(cuda::kStreamPerThread);
    check_refused(of_thread, "cudaStreamPerThread is another stream on each thread");
    Request by_default = own;
    by_default.stream = nullptr;
    together.arrive_and_wait();
    machine.cuda.begin_capture(gpu.stream.handle(), true);
    const std::string words = "its stream is being captured into a CUDA graph";
    check_refused(own, "allreduce 'gradient': " + words);
    check_contains(text_of<UsageError>([&] { work.wait_on(gpu.stream.handle()); }), words);
    check_refused(by_default, "allreduce 'gradient': its stream is the default one");
    together.arrive_and_wait();
    machine.cuda.end_capture();
    together.arrive_and_wait();
    // Both may be used afterwards.
    for (const Request& request : {own, by_default}) {
      sum.write(static_cast<float>(runtime.topology().rank + 1));
      static_cast<void>(sum.read());  // the streams do not wait for each other
      sum.check_result(runtime.submit(request));
    }
  });
}

namespace {

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

TEST_CASE("cuda deaths: a rank that leaves, dies or fails ends the sums of the others") {
  struct End {
    std::string how;
    bool has_met = true;
    int launch = 0;  ///< of those that follow, the one that fails
  };
  const End end = GENERATE(End{"leaves", false}, End{"leaves"}, End{"dies"}, End{"fails"},
                           End{"fails", true, 1}, End{"fails", true, 3}, End{"fails", true, 7});
  const Way way = GENERATE(kIpc, kDirect, kStaged);
  INFO(way.name << ", rank 1 " << end.how << ", has met " << end.has_met << ", " << end.launch);
  // Where a GPU fails, it is rank 1's alone.
  const int devices = end.how == "fails" ? 2 : 1;
  FakeMachine machine({.devices = devices});
  std::barrier together(3);
  run_gpu_ranks_unchecked(machine, 3, devices, cuda_options_of(machine, way),
                          [&](Runtime& runtime, ProgramGpu& gpu, const Kill& kill) {
                            for (int step = 0; end.has_met && step < 3; ++step)
                              sum_on_gpu(runtime, gpu, kCount);
                            together.arrive_and_wait();
                            if (runtime.topology().rank == 1) {
                              if (end.how == "leaves") return;
                              if (end.how == "dies") return kill();
                              machine.cuda.fail_on(1, "cuLaunchKernel", cuda::kInvalidValue, 1,
                                                   end.launch);
                            }
                            sum_to_death(runtime, gpu, 1);
                          });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda deaths: a rank that leaves within an operation whose input is late") {
  FakeMachine machine;
  CudaOptions options = cuda_options_of(machine, GENERATE(kIpc, kDirect, kStaged));
  INFO("ipc " << options.ipc << ", mapped from " << options.ipc_direct_bytes);
  std::vector<std::weak_ptr<void>> memory(2);
  std::barrier together(2);
  run_gpu_ranks_unchecked(
      machine, 2, 1, options, [&](Runtime& runtime, ProgramGpu& gpu, const Kill&) {
        const int rank = runtime.topology().rank;
        const auto own = static_cast<std::size_t>(rank);
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
        check(memory[own].expired(), "memory that nothing uses is handed back");
      });
  CHECK_FALSE(memory[1].expired());
  // What was queued runs on, in memory that is still there.
  machine.cuda.release_all();
  CHECK(machine.cuda.is_idle());
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

TEST_CASE("cuda deaths: survivors' GPUs do not wait for what a dead rank had queued") {
  const Way way = GENERATE(kIpc, kDirect);
  INFO(way.name);
  FakeMachine machine({.devices = kRanks});
  const CudaOptions options = cuda_options_of(machine, way);
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

TEST_CASE("cuda deaths: a rank that dies within the trial leaves nothing waiting") {
  FakeMachine machine({.devices = kRanks});
  CudaOptions options = cuda_options_of(machine);
  options.ipc_patience = std::chrono::minutes(1);
  std::barrier together(kRanks);
  run_gpu_ranks_unchecked(machine, kRanks, kRanks, options,
                          [&](Runtime& runtime, ProgramGpu& gpu, const Kill& kill) {
                            const bool dies = runtime.topology().rank == 2;
                            if (dies) machine.cuda.hold_new(2);
                            together.arrive_and_wait();
                            GpuSum sum(runtime, gpu, kCount);
                            const Work work = sum.start();
                            // Each rank tells the others, and waits for them.
                            while (machine.cuda.calls("cuStreamBatchMemOp_v2") < 2 * kRanks) {
                              std::this_thread::yield();
                            }
                            if (dies) return kill();
                            check_death(work, 2);
                          });
  CHECK(machine.cuda.contexts_on(0) == 0);
  CHECK(machine.cuda.contexts_on(1) == 0);
  // The dead rank's GPU hangs, and what the trial uses is still there.
  CHECK(machine.cuda.contexts_on(2) > 0);
  machine.cuda.release_all();
}

TEST_CASE("cuda deaths: waits of all sets end at once, as one may be behind another") {
  FakeMachine machine({.devices = kRanks});
  std::barrier together(kRanks);
  run_gpu_ranks_unchecked(
      machine, kRanks, kRanks, cuda_options_of(machine),
      [&](Runtime& runtime, ProgramGpu& gpu, const Kill& kill) {
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
        // Rank 0 has queued its part behind the sum of the two.
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
