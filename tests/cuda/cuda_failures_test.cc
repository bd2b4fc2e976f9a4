// SPDX-License-Identifier: Apache-2.0
// GPUs where something fails: the way falls back, with one line, or the group ends with a
// GroupError; and everything is given back. If a rank leaves or dies, the memory of the others is
// not touched afterwards.
#include <barrier>
#include <catch2/catch.hpp>
#include <functional>
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
constexpr int kRanks = 3;

/// Why CUDA IPC is not used: a call that fails on GPU 1, or an option of the machine.
struct Obstacle {
  const char* text = "";  ///< of the line; empty: nothing is in the way
  const char* symbol = nullptr;
  int skipped = 0;
  cuda::Result result = cuda::kNotSupported;
  FakeCuda::Options machine = {.devices = 2};
  std::vector<std::string> visible_devices = {};
};

const std::vector<Obstacle> kObstacles = {
    {"rank 1: CUDA failed while mapping memory of rank 0: cuIpcOpenMemHandle_v2",
     "cuIpcOpenMemHandle_v2", 0, cuda::kMapFailed},
    {"rank 1: CUDA failed while signalling the other ranks: cuStreamBatchMemOp_v2",
     "cuStreamBatchMemOp_v2"},
    {"rank 1: CUDA failed while waiting for the other ranks: cuStreamBatchMemOp_v2",
     "cuStreamBatchMemOp_v2", 1},
    {"rank 1: CUDA failed while pinning", "cuMemHostRegister_v2"},
    {"rank 1: CUDA failed while writing to the fusion buffer: cuMemsetD8Async", "cuMemsetD8Async"},
    // The fusion buffer has no room at first; the tensor of the program is made before.
    {"rank 1: CUDA failed while allocating", "cuMemAlloc_v2", 1, cuda::kOutOfMemory},
    {.text = "rank 0: the memory of other ranks does not answer",
     .machine = {.devices = 2, .written_words_show = false}},
    {.text = "rank 0: CUDA cannot export the fusion buffer of this GPU",
     .machine = {.devices = 2, .memory_is_ipc_capable = false}},
    {.text = "rank 0: what rank 1 wrote to its GPU's memory does not show in its mapping",
     .machine = {.devices = 2, .mappings_show_memory = false}},
    {.text = "rank 0: RONDE_VISIBLE_DEVICES does not name the GPU of rank 1 (GPU-02020202-",
     .visible_devices = {"GPU-01010101-0101-0101-0101-010101010101"}},
    // GPUs that are named by the beginning of a UUID, or shared.
    {.visible_devices = {"GPU-77", "GPU-01", "GPU-020202"}},
    {.machine = {.devices = 1}, .visible_devices = {"GPU-77777777"}}};

/// What ends a group on all ranks: calls that fail on GPU 1, before or after a first sum.
struct Fault {
  bool ipc;
  const char* symbol;
  int skipped;  ///< calls
  const char* text;
  bool is_lack = false;  ///< of memory, before the first sum
};

const std::vector<Fault> kFaults = {
    {true, "cuLaunchKernel", 4, "CUDA failed while launching"},
    {false, "cuMemcpyAsync", 2, "CUDA failed while copying from the GPU: cuMemcpyAsync"},
    {false, "cuMemcpyAsync", 3, "CUDA failed while copying to the GPU: cuMemcpyAsync"},
    {true, "cuStreamWaitEvent", 1, "CUDA failed while"},
    {false, "cuEventRecord", 3, "CUDA failed while ordering streams: cuEventRecord"},
    {false, "cuEventQuery", 0, "CUDA failed while waiting for the GPU: cuEventQuery"},
    {true, "cuEventQuery", 2, "CUDA failed while waiting for the GPU: cuEventQuery"},
    {true, "cuMemAlloc_v2", 0, "choose a smaller RONDE_FUSION_BYTES", true},
    {false, "cuMemAlloc_v2", 0, "choose a smaller RONDE_FUSION_BYTES", true},
    {false, "cuMemHostAlloc", 0, "bytes of host memory: cuMemHostAlloc", true},
    {false, "cuMemHostAlloc", 1, "bytes of host memory: cuMemHostAlloc", true},
    {true, "cuModuleLoadData", 0, "loading Ronde's kernels onto GPU 1: cuModuleLoadData", true}};

/// How `action` ended, which rank `lost` is to blame for.
Death check_death(int lost, const std::function<void()>& action) {
  const Death death = death_of(action);
  check(death.rank == lost, "rank " + std::to_string(lost) + " is to blame: " + death.text);
  return death;
}

}  // namespace

TEST_CASE("cuda failures: what is in the way of CUDA IPC is told in one line, and data is staged") {
  const Obstacle obstacle = GENERATE(from_range(kObstacles));
  INFO(obstacle.text);
  const CapturedErrors errors;
  CudaRanks machine(2, kIpc, obstacle.machine);
  if (!obstacle.machine.written_words_show)
    machine.options.ipc_patience = std::chrono::milliseconds(200);
  machine.options.visible_devices = obstacle.visible_devices;
  if (obstacle.symbol != nullptr) {
    machine.cuda.fail_on(1, obstacle.symbol, obstacle.result, 1, obstacle.skipped);
  }
  const bool is_mapped = obstacle.text == std::string();
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    for (int step = 0; step < 4; ++step) sum_on_gpu(runtime, gpu, kCount);
    check_counters(runtime, {{"staged_operations", is_mapped ? 0 : 4},
                             {"ipc_operations", is_mapped ? 4 : 0},
                             {"handles_lost", 0}});
  });
  CHECK(occurrences(errors.text(), "\n") == (is_mapped ? 0 : 1));
  if (is_mapped) return;
  CHECK_THAT(errors.text(),
             Catch::Contains("[ronde rank 0] warning: CUDA IPC cannot be used, and what is on GPUs "
                             "is staged through host memory: ") &&
                 Catch::Contains(obstacle.text) &&
                 Catch::Contains("(RONDE_CUDA_IPC=0 spares the trial)"));
}

TEST_CASE(
    "cuda failures: what a GPU cannot do, or has no memory for, ends the group, and is told") {
  const Fault fault = GENERATE(from_range(kFaults));
  CAPTURE(fault.ipc, fault.symbol, fault.skipped);
  CudaRanks machine(2, fault.ipc ? kIpc : kStaged, {.devices = 2});
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    if (!fault.is_lack) sum_on_gpu(runtime, gpu, kCount);
    GpuSum sum(runtime, gpu, kCount);
    if (runtime.topology().rank == 1) {
      const cuda::Result result = fault.is_lack ? cuda::kOutOfMemory : 700;  // a bad address
      machine.cuda.fail_on(1, fault.symbol, result, fault.is_lack ? 1000 : 1, fault.skipped);
    }
    const Death death = check_death(1, [&] {
      for (int step = 0; step < 20; ++step) sum.start().wait();
    });
    check_contains(death.text, "rank 1");
    check_contains(death.text, fault.text);
    check_contains(death_of([&] { sum.start(); }).text, fault.text);
  });
  machine.check_clean();
}

TEST_CASE("cuda failures: without room for a context the operation is refused at submit") {
  CudaRanks machine(2);
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
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
  CudaRanks machine(2, kIpc, {.devices = 2});
  machine.device_of = {0, 0};
  std::barrier together(2);
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
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
  CudaRanks machine(3, way, {.devices = devices});
  std::barrier together(3);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    for (int step = 0; end.has_met && step < 3; ++step) sum_on_gpu(runtime, gpu, kCount);
    together.arrive_and_wait();
    if (runtime.topology().rank == 1) {
      if (end.how == "leaves") return;
      if (end.how == "dies") return machine.kill(1);
      machine.cuda.fail_on(1, "cuLaunchKernel", cuda::kInvalidValue, 1, end.launch);
    }
    std::weak_ptr<void> memory;
    check_death(1, [&] {
      for (int step = 0; step < 20; ++step) start_owned(runtime, gpu, kCount, memory).wait();
    });
    check(memory.expired(), "the memory is handed back");
  });
  machine.check_clean();
}

TEST_CASE("cuda deaths: a rank that leaves within an operation whose input is late") {
  const Way way = GENERATE(kIpc, kDirect, kStaged);
  INFO(way.name);
  CudaRanks machine(2, way);
  std::vector<std::weak_ptr<void>> memory(2);
  std::barrier together(2);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    const int rank = runtime.topology().rank;
    const auto own = static_cast<std::size_t>(rank);
    sum_on_gpu(runtime, gpu, kCount);
    if (rank == 1) machine.cuda.hold(gpu.stream.handle());
    const Work work = start_owned(runtime, gpu, kCount, memory[own]);
    if (way.ipc) work.wait_on(gpu.stream.handle());
    while (counter_of(runtime, "cuda", way.ipc ? "ipc_operations" : "staged_operations") < 2) {
      std::this_thread::yield();
    }
    check(!work.done(), "its input is late");
    together.arrive_and_wait();
    if (rank == 1) return;
    check_death(1, [&] { work.wait(); });
    check(memory[own].expired(), "memory that nothing uses is handed back");
  });
  CHECK_FALSE(memory[1].expired());
  // What was queued runs on, in memory that is still there.
  machine.cuda.release_all();
  CHECK(machine.cuda.is_idle());
}

TEST_CASE("cuda deaths: a rank that dies within the trial leaves nothing waiting") {
  CudaRanks machine(kRanks, kIpc, {.devices = kRanks});
  machine.options.ipc_patience = std::chrono::minutes(1);
  std::barrier together(kRanks);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    const bool dies = runtime.topology().rank == 2;
    if (dies) machine.cuda.hold_new(2);
    together.arrive_and_wait();
    GpuSum sum(runtime, gpu, kCount);
    const Work work = sum.start();
    // Each rank tells the others, and waits for them.
    while (machine.cuda.calls("cuStreamBatchMemOp_v2") < 2 * kRanks) {
      std::this_thread::yield();
    }
    if (dies) return machine.kill(2);
    check_death(2, [&] { work.wait(); });
  });
  CHECK(machine.cuda.contexts_on(0) == 0);
  CHECK(machine.cuda.contexts_on(1) == 0);
  // The dead rank's GPU hangs, and what the trial uses is still there.
  CHECK(machine.cuda.contexts_on(2) > 0);
  machine.cuda.release_all();
}

TEST_CASE(
    "cuda deaths: survivors' GPUs do not wait for a dead rank's, in any set, and come to more") {
  const Way way = GENERATE(kIpc, kDirect);
  INFO(way.name);
  CudaRanks machine(kRanks, way, {.devices = kRanks});
  std::barrier together(kRanks);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
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
    check(!work.done(), "a rank's part is late");
    together.arrive_and_wait();
    if (rank == 1) return machine.kill(1);
    const Death death = check_death(1, [&] { work.wait(); });
    if (rank == 0) check(death_of([&] { of_two.wait(); }) == death, "so it is of the two");
    // All that this rank has queued ends, and so does what the program has queued behind it.
    const cuda::Current current(*gpu.context);
    check(gpu.context->api().stream_synchronize(gpu.stream.handle()) == cuda::kSuccess, "ends");
    check(of_pair.expired() && of_all.expired(), "the memory of both is handed back");
  });
  machine.cuda.release_all();
}
