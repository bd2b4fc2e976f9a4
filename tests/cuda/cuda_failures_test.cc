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

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 20'000;
constexpr const char* kFirstGpu = "GPU-01010101-0101-0101-0101-010101010101";

/// Why CUDA IPC is not used.
struct Obstacle {
  const char* name;
  FakeCuda::Options machine = {.devices = 2};
  std::function<void(FakeCuda& cuda, CudaOptions& options)> set = {};
  const char* text = "";  ///< of the line
};

const std::vector<Obstacle>& obstacles() {
  static const std::vector<Obstacle> all = {
      {.name = "a rank cannot open memory",
       .set = [](FakeCuda& cuda,
                 CudaOptions&) { cuda.fail_on(1, "cuIpcOpenMemHandle_v2", cuda::kMapFailed); },
       .text = "rank 1: CUDA failed while mapping memory of rank 0: cuIpcOpenMemHandle_v2"},
      {.name = "a rank cannot open an event",
       .set =
           [](FakeCuda& cuda, CudaOptions& options) {
             options.ipc_handover = IpcHandover::Events;
             cuda.fail_on(0, "cuIpcOpenEventHandle", cuda::kMapFailed, 1, 3);
           },
       .text =
           "rank 0: by events: CUDA failed while opening an event of rank 1: cuIpcOpenEventHandle"},
      {.name = "a rank cannot make an event for others",
       .set =
           [](FakeCuda& cuda, CudaOptions& options) {
             options.ipc_handover = IpcHandover::Events;
             cuda.fail_on(1, "cuIpcGetEventHandle", cuda::kInvalidHandle);
           },
       .text = "rank 1: by events: CUDA failed while exporting an event: cuIpcGetEventHandle"},
      {.name = "the GPUs do not reach each other",
       .machine = {.devices = 2, .peers_reach_each_other = false},
       .text = "rank 0: CUDA failed while mapping memory of rank 1: cuIpcOpenMemHandle_v2"},
      {.name = "memory cannot be exported",
       .machine = {.devices = 2, .memory_is_ipc_capable = false},
       .text = "rank 0: CUDA cannot export the fusion buffer of this GPU"},
      {.name = "mappings show other memory",
       .machine = {.devices = 2, .mappings_show_memory = false},
       .text =
           "rank 0: by events: what rank 1 wrote to its GPU's memory does not show in its mapping"},
      {.name = "a GPU is not to be mapped",
       .set = [](FakeCuda&, CudaOptions& options) { options.visible_devices = {kFirstGpu}; },
       .text = "rank 0: RONDE_VISIBLE_DEVICES does not name the GPU of rank 1 (GPU-02020202-"},
      {.name = "the first look at others fails",
       .set = [](FakeCuda& cuda,
                 CudaOptions&) { cuda.fail_on(1, "cuMemsetD8Async", cuda::kInvalidValue); },
       .text = "rank 1: CUDA failed while writing to the fusion buffer: cuMemsetD8Async"},
      {.name = "there is no room for the fusion buffer at first",
       .set =
           [](FakeCuda& cuda, CudaOptions&) {
             // The tensor of the program is made before.
             cuda.fail_on(1, "cuMemAlloc_v2", cuda::kOutOfMemory, 1, 1);
           },
       .text = "rank 1: CUDA failed while allocating"},
  };
  return all;
}

/// What ends a group on all ranks: a call that fails on GPU 1.
struct Fault {
  const char* name;
  const char* symbol;
  cuda::Result result;
  bool ipc;
  int skipped;  ///< calls, after those of the start
  const char* text;
};

const std::vector<Fault>& faults() {
  constexpr cuda::Result kIllegalAddress = 700;
  constexpr const char* kOrdering = "CUDA failed while ordering streams: cuEventRecord";
  constexpr const char* kUp = "CUDA failed while copying to the GPU: cuMemcpyAsync";
  static const std::vector<Fault> all = {
      {"a launch by ipc", "cuLaunchKernel", kIllegalAddress, true, 0,
       "CUDA failed while launching"},
      {"a later launch by ipc", "cuLaunchKernel", kIllegalAddress, true, 4,
       "CUDA failed while launching"},
      {"a launch, staged", "cuLaunchKernel", kIllegalAddress, false, 0,
       "CUDA failed while launching"},
      {"a copy, staged", "cuMemcpyAsync", kIllegalAddress, false, 3,
       "CUDA failed while copying from the GPU: cuMemcpyAsync"},
      {"a copy back, staged", "cuMemcpyAsync", kIllegalAddress, false, 4, kUp},
      {"waiting for others", "cuStreamWaitEvent", kIllegalAddress, true, 1, "CUDA failed while"},
      {"an event, staged", "cuEventRecord", kIllegalAddress, false, 3, kOrdering},
      {"asking for an event", "cuEventQuery", kIllegalAddress, false, 0,
       "CUDA failed while waiting for the GPU: cuEventQuery"},
      {"asking for the result", "cuEventQuery", kIllegalAddress, true, 2,
       "CUDA failed while waiting for the GPU: cuEventQuery"},
  };
  return all;
}

}  // namespace

TEST_CASE("cuda failures: what is in the way of CUDA IPC is told in one line, and data is staged") {
  const auto& obstacle = obstacles()[GENERATE(range(std::size_t{0}, obstacles().size()))];
  INFO(obstacle.name);
  const CapturedErrors errors;
  FakeMachine machine(obstacle.machine);
  CudaOptions options = cuda_options_of(machine);
  options.ipc_patience = std::chrono::milliseconds(200);
  if (obstacle.set) obstacle.set(machine.cuda, options);
  Config config = test_config();
  config.log_level = "warning";
  run_gpu_ranks(
      machine, 2, 2, options,
      [](Runtime& runtime, ProgramGpu& gpu) {
        GpuSum sum(runtime, gpu, kCount);
        sum.check_result(sum.start());
        for (int step = 0; step < 3; ++step) sum_on_gpu(runtime, gpu, kCount);
        check(cuda_counter(runtime, "staged_operations") == 4, "all staged");
        check(cuda_counter(runtime, "ipc_operations") == 0, "none by ipc");
        check(cuda_counter(runtime, "handles_lost") == 0, "nothing lost");
      },
      config);
  CHECK(occurrences(errors.text(), "\n") == 1);
  CHECK_THAT(errors.text(),
             Catch::Contains("[ronde rank 0] warning: CUDA IPC cannot be used, and what is on GPUs "
                             "is staged through host memory: ") &&
                 Catch::Contains(obstacle.text));
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda failures: ranks that share a GPU need no permission to map each other") {
  FakeMachine machine;
  CudaOptions options = cuda_options_of(machine);
  options.visible_devices = {"GPU-77777777"};
  run_gpu_ranks(machine, 2, 1, options, [](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    check(cuda_counter(runtime, "ipc_operations") == 1, "by ipc");
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
  Config config = test_config();
  config.log_level = "warning";
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    ProgramGpu gpu(machine.cuda.api(), rank);
    Runtime runtime(gpu_options_of(group, rank, options, "shm", config));
    // Behind that of the workbench, and that for what is copied up: of one trial or of all.
    if (rank == 1) machine.cuda.hold_new(1, 2 + trials);
    GpuSum sum(runtime, gpu, kCount);
    sum.check_result(sum.start());
    check(cuda_counter(runtime, "staged_operations") == 1, "staged");
    if (comes_back && rank == 1) machine.cuda.release_all();
    sum_on_gpu(runtime, gpu, kCount);
    runtime.shutdown();
  });
  CHECK(occurrences(errors.text(), "\n") == 1);
  CHECK_THAT(errors.text(), Catch::Contains(": the memory of other ranks does not answer"));
  if (comes_back) {
    CHECK(machine.cuda.live() == FakeCuda::Live{});
  } else {
    // What the hanging work uses is still there when it comes to it.
    CHECK(machine.cuda.live().allocations > 0);
    machine.cuda.release_all();
  }
}

TEST_CASE("cuda failures: what cannot be done on a GPU ends the group, and says who could not") {
  const Fault& fault = faults()[GENERATE(range(std::size_t{0}, faults().size()))];
  INFO(fault.name);
  FakeMachine machine({.devices = 2});
  CudaOptions options = cuda_options_of(machine);
  options.ipc = fault.ipc;
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    ProgramGpu gpu(machine.cuda.api(), rank);
    Runtime runtime(gpu_options_of(group, rank, options));
    sum_on_gpu(runtime, gpu, kCount);
    GpuSum sum(runtime, gpu, kCount);
    if (rank == 1) machine.cuda.fail_on(1, fault.symbol, fault.result, 1, fault.skipped);
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

TEST_CASE("cuda failures: without memory the group ends, and says what to do") {
  struct Lack {
    const char* symbol;
    int skipped;
    bool ipc;
    const char* text;
  };
  const Lack lack = GENERATE(
      Lack{"cuMemAlloc_v2", 0, true, "choose a smaller RONDE_FUSION_BYTES"},
      Lack{"cuMemAlloc_v2", 0, false, "choose a smaller RONDE_FUSION_BYTES"},
      Lack{"cuMemHostAlloc", 0, false, "bytes of host memory: cuMemHostAlloc"},
      Lack{"cuMemHostAlloc", 1, false, "bytes of host memory: cuMemHostAlloc"},
      Lack{"cuModuleLoadData", 0, true, "loading Ronde's kernels onto GPU 1: cuModuleLoadData"});
  INFO(lack.symbol << " after " << lack.skipped << ", ipc " << lack.ipc);
  FakeMachine machine({.devices = 2});
  CudaOptions options = cuda_options_of(machine);
  options.ipc = lack.ipc;
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    ProgramGpu gpu(machine.cuda.api(), rank);
    Runtime runtime(gpu_options_of(group, rank, options));
    GpuSum sum(runtime, gpu, kCount);
    if (rank == 1) machine.cuda.fail_on(1, lack.symbol, cuda::kOutOfMemory, 1000, lack.skipped);
    const Death death = death_of([&] { sum.start().wait(); });
    check(death.rank == 1, "rank 1 is to blame: " + death.text);
    check_contains(death.text, lack.text);
  });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda failures: without room for a context the operation is refused at submit") {
  FakeMachine machine;
  run_gpu_ranks(machine, 2, 1, cuda_options_of(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kCount);
    Request barrier;
    barrier.kind = Collective::Barrier;
    runtime.submit(barrier).wait();
    if (runtime.topology().rank == 0) {
      machine.cuda.fail("cuDevicePrimaryCtxRetain", cuda::kOutOfMemory);
      check_contains(text_of<Error>([&] { sum.start(); }), "making a context on GPU 0");
    }
    runtime.submit(barrier).wait();
    sum.check_result(sum.start());
  });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
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
  CHECK(machine.cuda.live() == FakeCuda::Live{});
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
  CHECK(machine.cuda.live() == FakeCuda::Live{});
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
  CHECK(machine.cuda.live() == FakeCuda::Live{});
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
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}
