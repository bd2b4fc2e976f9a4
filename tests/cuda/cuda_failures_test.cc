// SPDX-License-Identifier: Apache-2.0
// GPUs where something fails: the way falls back, with one line, or the group ends with a
// GroupError; and everything is given back.
#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "gpu_ranks.h"
#include "tests/support/captured_errors.h"
#include "tests/support/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 20'000;
constexpr const char* kFirstGpu = "GPU-01010101-0101-0101-0101-010101010101";

/// Why CUDA IPC is not used.
struct Obstacle {
  const char* name;
  FakeCuda::Options machine;
  std::function<void(FakeCuda& cuda, CudaOptions& options)> set;
  const char* text;  ///< of the line
};
const std::function<void(FakeCuda&, CudaOptions&)> kNothing = [](FakeCuda&, CudaOptions&) {};

const std::vector<Obstacle> kObstacles = {
    {"a rank cannot open memory",
     {.devices = 2},
     [](FakeCuda& cuda, CudaOptions&) {
       cuda.fail_on(1, "cuIpcOpenMemHandle_v2", cuda::kMapFailed);
     },
     "rank 1: CUDA failed while mapping memory of rank 0: cuIpcOpenMemHandle_v2"},
    {"a rank cannot open an event",
     {.devices = 2},
     [](FakeCuda& cuda, CudaOptions& options) {
       options.ipc_handover = IpcHandover::Events;
       cuda.fail_on(0, "cuIpcOpenEventHandle", cuda::kMapFailed, 1, 3);
     },
     "rank 0: by events: CUDA failed while opening an event of rank 1: cuIpcOpenEventHandle"},
    {"a rank cannot make an event for others",
     {.devices = 2},
     [](FakeCuda& cuda, CudaOptions& options) {
       options.ipc_handover = IpcHandover::Events;
       cuda.fail_on(1, "cuIpcGetEventHandle", cuda::kInvalidHandle);
     },
     "rank 1: by events: CUDA failed while exporting an event: cuIpcGetEventHandle"},
    {"the GPUs do not reach each other",
     {.devices = 2, .peers_reach_each_other = false},
     kNothing,
     "rank 0: CUDA failed while mapping memory of rank 1: cuIpcOpenMemHandle_v2"},
    {"memory cannot be exported",
     {.devices = 2, .memory_is_ipc_capable = false},
     kNothing,
     "rank 0: CUDA cannot export the fusion buffer of this GPU"},
    {"mappings show other memory",
     {.devices = 2, .mappings_show_memory = false},
     kNothing,
     "rank 0: by events: what rank 1 wrote to its GPU's memory does not show in its mapping"},
    {"a GPU is not to be mapped",
     {.devices = 2},
     [](FakeCuda&, CudaOptions& options) { options.visible_devices = {kFirstGpu}; },
     "rank 0: RONDE_VISIBLE_DEVICES does not name the GPU of rank 1 (GPU-02020202-"},
    {"the first look at others fails",
     {.devices = 2},
     [](FakeCuda& cuda, CudaOptions&) { cuda.fail_on(1, "cuMemsetD8Async", cuda::kInvalidValue); },
     "rank 1: CUDA failed while writing to the fusion buffer: cuMemsetD8Async"},
    {"there is no room for the fusion buffer at first",
     {.devices = 2},
     [](FakeCuda& cuda, CudaOptions&) {
       // The tensor of the program is made before.
       cuda.fail_on(1, "cuMemAlloc_v2", cuda::kOutOfMemory, 1, 1);
     },
     "rank 1: CUDA failed while allocating"},
};

/// What ends a group on all ranks: a call that fails on GPU 1.
struct Fault {
  const char* name;
  const char* symbol;
  cuda::Result result;
  bool ipc;
  int skipped;  ///< calls
  const char* text;
};

constexpr cuda::Result kIllegalAddress = 700;
const std::vector<Fault> kFaults = {
    {"a launch by ipc", "cuLaunchKernel", kIllegalAddress, true, 0, "CUDA failed while launching"},
    {"a later launch by ipc", "cuLaunchKernel", kIllegalAddress, true, 4,
     "CUDA failed while launching"},
    {"a launch, staged", "cuLaunchKernel", kIllegalAddress, false, 0,
     "CUDA failed while launching"},
    {"a copy, staged", "cuMemcpyAsync", kIllegalAddress, false, 3,
     "CUDA failed while copying from the GPU: cuMemcpyAsync"},
    {"a copy back, staged", "cuMemcpyAsync", kIllegalAddress, false, 4,
     "CUDA failed while copying to the GPU: cuMemcpyAsync"},
    {"waiting for others", "cuStreamWaitEvent", kIllegalAddress, true, 1, "CUDA failed while"},
    {"an event, staged", "cuEventRecord", kIllegalAddress, false, 3,
     "CUDA failed while ordering streams: cuEventRecord"},
    {"asking for an event", "cuEventQuery", kIllegalAddress, false, 0,
     "CUDA failed while waiting for the GPU: cuEventQuery"},
    {"asking for the result", "cuEventQuery", kIllegalAddress, true, 2,
     "CUDA failed while waiting for the GPU: cuEventQuery"},
};

/// Before the first sum: what there is no memory for.
const std::vector<Fault> kLacks = {
    {"the fusion buffer", "cuMemAlloc_v2", cuda::kOutOfMemory, true, 0,
     "choose a smaller RONDE_FUSION_BYTES"},
    {"the fusion buffer, staged", "cuMemAlloc_v2", cuda::kOutOfMemory, false, 0,
     "choose a smaller RONDE_FUSION_BYTES"},
    {"host memory", "cuMemHostAlloc", cuda::kOutOfMemory, false, 0,
     "bytes of host memory: cuMemHostAlloc"},
    {"more host memory", "cuMemHostAlloc", cuda::kOutOfMemory, false, 1,
     "bytes of host memory: cuMemHostAlloc"},
    {"kernels", "cuModuleLoadData", cuda::kOutOfMemory, true, 0,
     "loading Ronde's kernels onto GPU 1: cuModuleLoadData"},
};

/// Two ranks with a GPU each sum until calls of the second one fail, `times` of them: before the
/// first sum, or after it.
void sum_until(const Fault& fault, int times, bool after_first) {
  INFO(fault.name);
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
  INFO(obstacle.name);
  const CapturedErrors errors;
  FakeMachine machine(obstacle.machine);
  CudaOptions options = cuda_options_of(machine);
  options.ipc_patience = std::chrono::milliseconds(200);
  obstacle.set(machine.cuda, options);
  run_gpu_ranks(
      machine, 2, 2, options,
      [](Runtime& runtime, ProgramGpu& gpu) {
        GpuSum sum(runtime, gpu, kCount);
        sum.check_result(sum.start());
        for (int step = 0; step < 3; ++step) sum_on_gpu(runtime, gpu, kCount);
        check_counters(runtime,
                       {{"staged_operations", 4}, {"ipc_operations", 0}, {"handles_lost", 0}});
      },
      warning_config());
  CHECK(occurrences(errors.text(), "\n") == 1);
  CHECK_THAT(errors.text(),
             Catch::Contains("[ronde rank 0] warning: CUDA IPC cannot be used, and what is on GPUs "
                             "is staged through host memory: ") &&
                 Catch::Contains(obstacle.text));
}

TEST_CASE("cuda failures: ranks that share a GPU need no permission to map each other") {
  FakeMachine machine;
  CudaOptions options = cuda_options_of(machine);
  options.visible_devices = {"GPU-77777777"};
  run_gpu_ranks(machine, 2, 1, options, [](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    check_counters(runtime, {{"ipc_operations", 1}});
  });
}

TEST_CASE("cuda failures: an ordinal that no GPU has ends the start on all ranks") {
  FakeMachine machine;
  CudaOptions options = cuda_options_of(machine);
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    CudaOptions of_rank = options;
    if (rank == 1) of_rank.visible_devices = {"5"};
    const std::string text =
        text_of<UsageError>([&] { const Runtime runtime(gpu_options_of(group, rank, of_rank)); });
    check_contains(text, "rank 1 cannot start its backend: RONDE_VISIBLE_DEVICES: ordinals count");
  });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE(
    "cuda failures: memory of others that does not answer is given up, and given back later") {
  const bool comes_back = GENERATE(true, false);
  const int trials = GENERATE(0, 1);
  const CapturedErrors errors;
  FakeMachine machine({.devices = 2});
  CudaOptions options = cuda_options_of(machine);
  options.ipc_patience = std::chrono::milliseconds(50);
  run_gpu_ranks_unchecked(
      machine, 2, 2, options,
      [&](Runtime& runtime, ProgramGpu& gpu, const Kill&) {
        const bool hangs = runtime.topology().rank == 1;
        // Behind that of the workbench, and that for what is copied up: of one trial or of all.
        if (hangs) machine.cuda.hold_new(1, 2 + trials);
        sum_on_gpu(runtime, gpu, kCount);
        check_counters(runtime, {{"staged_operations", 1}});
        if (comes_back && hangs) machine.cuda.release_all();
        sum_on_gpu(runtime, gpu, kCount);
        runtime.shutdown();
      },
      warning_config());
  CHECK(occurrences(errors.text(), "\n") == 1);
  CHECK_THAT(errors.text(), Catch::Contains(": the memory of other ranks does not answer"));
  if (comes_back) {
  } else {
    // What the hanging work uses is still there when it comes to it.
    CHECK(machine.cuda.live().allocations > 0);
    machine.cuda.release_all();
  }
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

TEST_CASE("cuda failures: a second GPU of a rank is refused where it is submitted") {
  FakeMachine machine({.devices = 2});
  run_gpu_ranks(machine, 2, 1, cuda_options_of(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    ProgramGpu second(machine.cuda.api(), 1);
    GpuSum sum(runtime, second, kCount);
    check_contains(text_of<UsageError>([&] { sum.start(); }),
                   "a tensor is on GPU 1, but those before it on GPU 0");
    sum_on_gpu(runtime, gpu, kCount);
  });
}

TEST_CASE("cuda failures: a stream that is being captured is refused, and may be used afterwards") {
  FakeMachine machine;
  std::barrier together(2);
  run_gpu_ranks(machine, 2, 1, cuda_options_of(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kCount);
    const Work work = sum.start("before");
    sum.check_result(work);
    GpuSum captured(runtime, gpu, kCount);
    machine.cuda.begin_capture(gpu.stream.handle());
    const std::string words = "its stream is being captured into a CUDA graph";
    check_contains(text_of<UsageError>([&] { captured.start("gradient"); }),
                   "allreduce 'gradient': " + words);
    check_contains(text_of<UsageError>([&] { work.wait_on(gpu.stream.handle()); }), words);
    together.arrive_and_wait();
    machine.cuda.end_capture();
    together.arrive_and_wait();
    captured.check_result(captured.start("gradient"));
  });
}

TEST_CASE("cuda failures: the default stream is refused where a capture makes it unusable") {
  FakeMachine machine;
  std::barrier together(2);
  run_gpu_ranks(machine, 2, 1, cuda_options_of(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kCount);
    Request request = sum.request("gradient");
    request.stream = nullptr;
    together.arrive_and_wait();
    machine.cuda.begin_capture(gpu.stream.handle(), true);
    check_contains(text_of<UsageError>([&] { runtime.submit(request); }),
                   "allreduce 'gradient': its stream is the default one");
    together.arrive_and_wait();
    machine.cuda.end_capture();
    together.arrive_and_wait();
    sum.check_result(runtime.submit(request));
  });
}

TEST_CASE(
    "cuda failures: cudaStreamPerThread is refused, as it is another one on Ronde's threads") {
  FakeMachine machine;
  run_gpu_ranks(machine, 2, 1, cuda_options_of(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kCount);
    Request request = sum.request();
    request.stream = reinterpret_cast<void*>(cuda::kStreamPerThread);
    check_contains(text_of<UsageError>([&] { runtime.submit(std::move(request)); }),
                   "cudaStreamPerThread is another stream on each thread");
    sum.check_result(sum.start());
  });
}
