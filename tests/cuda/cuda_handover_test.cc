// SPDX-License-Identifier: Apache-2.0
// How ranks that reach each other by CUDA IPC wait for each other: by events, by flags, or by
// kernels.
#include <barrier>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "backends/cuda/kernels/flags.h"
#include "gpu_exercise.h"
#include "gpu_ranks.h"
#include "tests/support/captured_errors.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 20'000;

const char* name_of(IpcHandover handover) {
  switch (handover) {
    case IpcHandover::Auto:
      return "auto";
    case IpcHandover::Events:
      return "events";
    case IpcHandover::Flags:
      return "flags";
    case IpcHandover::Kernels:
      return "kernels";
  }
  return "";
}

/// All handovers so far were of one kind.
void check_kind(const Runtime& runtime, IpcHandover kind) {
  const std::uint64_t all = cuda_counter(runtime, "handovers");
  check(all > 0, "there were handovers");
  const auto of = [&](IpcHandover each) { return kind == each ? all : 0; };
  check(cuda_counter(runtime, "flag_handovers") == of(IpcHandover::Flags), "by flags");
  check(cuda_counter(runtime, "kernel_handovers") == of(IpcHandover::Kernels), "by kernels");
}

void check_bits(IpcHandover handover) {
  // Late and in any order, where what is mapped is closed after each operation, too.
  const bool is_late = GENERATE(false, true);
  const auto exercise = GENERATE(exercise_sizes, exercise_exchanges);
  INFO(name_of(handover) << ", late " << is_late);
  FakeMachine machine({.devices = 2, .disorder = is_late ? 7U : 0U});
  CudaOptions options = cuda_options_of(machine);
  options.ipc_handover = handover;
  options.registration_cache = !is_late;
  run_gpu_ranks(machine, 3, 2, options, [&](Runtime& runtime, ProgramGpu& gpu) {
    exercise(runtime, gpu);
    check_kind(runtime, handover);
  });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

/// Why flags are not used.
struct Obstacle {
  const char* name;
  IpcHandover handover;
  FakeCuda::Options machine;
  std::function<void(FakeCuda& cuda)> set;
  const char* text;  ///< of the line
};

const std::vector<Obstacle>& obstacles() {
  static const std::vector<Obstacle> all = {
      {.name = "a rank's streams do not know flags",
       .handover = IpcHandover::Flags,
       .machine = {.devices = 1},
       .set = [](FakeCuda& cuda) { cuda.fail("cuStreamBatchMemOp_v2", cuda::kNotSupported); },
       .text = "CUDA failed while telling the other ranks: cuStreamBatchMemOp_v2"},
      {.name = "a rank's streams cannot wait for flags",
       .handover = IpcHandover::Flags,
       .machine = {.devices = 1},
       .set = [](FakeCuda& cuda) { cuda.fail("cuStreamBatchMemOp_v2", cuda::kNotSupported, 1, 2); },
       .text = "CUDA failed while waiting for the other ranks: cuStreamBatchMemOp_v2"},
      {.name = "a rank cannot pin what ranks share",
       .handover = IpcHandover::Flags,
       .machine = {.devices = 1},
       .set = [](FakeCuda& cuda) { cuda.fail("cuMemHostRegister_v2", cuda::kNotSupported); },
       .text = "cuMemHostRegister_v2"},
      {.name = "what streams write to other processes' memory gets lost",
       .handover = IpcHandover::Flags,
       .machine = {.devices = 1, .written_words_show = false},
       .set = {},
       .text = "rank 0: by flags: the memory of other ranks does not answer"},
      {.name = "a kernel cannot be launched",
       .handover = IpcHandover::Kernels,
       .machine = {.devices = 2},
       .set = [](FakeCuda& cuda) { cuda.fail_on(1, "cuLaunchKernel", cuda::kInvalidValue); },
       .text = "rank 1: by kernels: CUDA failed while launching ronde_signal: cuLaunchKernel"},
  };
  return all;
}

}  // namespace

TEST_CASE("cuda ipc handover: by events the bits are those of the CPU, late and in any order") {
  check_bits(IpcHandover::Events);
}

TEST_CASE("cuda ipc handover: by flags the bits are those of the CPU, late and in any order") {
  check_bits(IpcHandover::Flags);
}

TEST_CASE("cuda ipc handover: by kernels the bits are those of the CPU, late and in any order") {
  check_bits(IpcHandover::Kernels);
}

TEST_CASE("cuda ipc handover: kernels where each rank has a GPU, flags where two share one") {
  const int devices = GENERATE(1, 2, 3);
  FakeMachine machine({.devices = devices});
  run_gpu_ranks(machine, 3, devices, cuda_options_of(machine),
                [&](Runtime& runtime, ProgramGpu& gpu) {
                  for (int step = 0; step < 5; ++step) sum_on_gpu(runtime, gpu, kCount);
                  check_kind(runtime, devices == 3 ? IpcHandover::Kernels : IpcHandover::Flags);
                });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda ipc handover: a process set uses flags, as other ranks may be on its GPUs") {
  FakeMachine machine({.devices = 2});
  run_gpu_ranks(machine, 4, 2, cuda_options_of(machine), [](Runtime& runtime, ProgramGpu& gpu) {
    const ProcessSet set = runtime.add_process_set({0, 1});
    if (runtime.topology().rank < 2) {
      GpuSum sum(runtime, gpu, kCount);
      Request request = sum.request();
      request.set = set;
      sum.check_result(runtime.submit(std::move(request)), 2);
    }
    Request barrier;
    barrier.kind = Collective::Barrier;
    runtime.submit(barrier).wait();
  });
  CHECK(machine.cuda.calls("cuStreamBatchMemOp_v2") > 0);
}

TEST_CASE("cuda ipc handover: where events cannot be shared, flags do") {
  FakeMachine machine;
  machine.cuda.fail("cuIpcGetEventHandle", cuda::kInvalidHandle, 1000);
  run_gpu_ranks(machine, 2, 1, cuda_options_of(machine), [](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    check_kind(runtime, IpcHandover::Flags);
  });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda ipc handover: flags that go past the largest number are ahead of those before it") {
  using cuda::kernels::has_reached;
  CHECK(has_reached(5, 5));
  CHECK(has_reached(6, 5));
  CHECK_FALSE(has_reached(4, 5));
  CHECK(has_reached(2, 0xffff'fffe));
  CHECK_FALSE(has_reached(0xffff'fffe, 2));
  CHECK(has_reached(0x3fff'ffff, 0xffff'ffff));
}

TEST_CASE("cuda ipc handover: where flags fail, events take over with one line, or nothing does") {
  const auto& obstacle = obstacles()[GENERATE(range(std::size_t{0}, obstacles().size()))];
  const bool by_name = GENERATE(false, true);
  INFO(obstacle.name << ", by name " << by_name);
  const CapturedErrors errors;
  FakeMachine machine(obstacle.machine);
  CudaOptions options = cuda_options_of(machine);
  options.ipc_patience = std::chrono::milliseconds(100);
  if (by_name) options.ipc_handover = obstacle.handover;
  if (obstacle.set) obstacle.set(machine.cuda);
  Config config = test_config();
  config.log_level = "warning";
  run_gpu_ranks(
      machine, 2, obstacle.machine.devices, options,
      [&](Runtime& runtime, ProgramGpu& gpu) {
        for (int step = 0; step < 4; ++step) sum_on_gpu(runtime, gpu, kCount);
        check(cuda_counter(runtime, "ipc_operations") == (by_name ? 0 : 4), "by ipc");
        if (!by_name) check_kind(runtime, IpcHandover::Events);
      },
      config);
  CHECK(occurrences(errors.text(), "\n") == 1);
  CHECK_THAT(errors.text(), Catch::Contains(obstacle.text) &&
                                Catch::Contains(by_name ? "warning: CUDA IPC cannot be used"
                                                        : "warning: ranks hand over by CUDA's "
                                                          "events (RONDE_CUDA_IPC_HANDOVER=events "
                                                          "spares the trial), as what is faster "
                                                          "does not work: rank "));
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda ipc handover: survivors' GPUs do not wait for what a dead rank had queued") {
  const IpcHandover handover = GENERATE(IpcHandover::Flags, IpcHandover::Kernels);
  const std::uint64_t direct_bytes = GENERATE(0U, 1U);
  INFO(name_of(handover) << ", mapped from " << direct_bytes);
  constexpr int kRanks = 3;
  FakeMachine machine({.devices = kRanks});
  CudaOptions options = cuda_options_of(machine);
  options.ipc_handover = handover;
  options.ipc_direct_bytes = direct_bytes;
  std::vector<std::unique_ptr<ProgramGpu>> gpus;
  for (int rank = 0; rank < kRanks; ++rank) {
    gpus.push_back(std::make_unique<ProgramGpu>(machine.cuda.api(), rank));
  }
  std::vector<std::weak_ptr<void>> memory(kRanks);
  std::barrier together(kRanks);
  inproc::Group group(kRanks);
  run_ranks(kRanks, [&](int rank) {
    ProgramGpu& gpu = *gpus[static_cast<std::size_t>(rank)];
    Runtime runtime(gpu_options_of(group, rank, options));
    sum_on_gpu(runtime, gpu, kCount);
    // The dead rank's GPU never comes to its part.
    if (rank == 2) machine.cuda.hold(gpu.stream.handle());
    auto sum = std::make_shared<GpuSum>(runtime, gpu, kCount);
    memory[static_cast<std::size_t>(rank)] = sum;
    Request request = sum->request("late");
    request.keep_alive = std::move(sum);
    const Work work = runtime.submit(std::move(request));
    work.wait_on(gpu.stream.handle());
    check(!work.done(), "a rank's part is late");
    together.arrive_and_wait();
    if (rank == 2) {
      group.kill(2);
      return;
    }
    const Death death = death_of([&] { work.wait(); });
    check(death.rank == 2, "rank 2 is lost: " + death.text);
    // All that this rank has queued ends, and so does what the program has queued behind it.
    const cuda::Current current(*gpu.context);
    check(gpu.context->api().stream_synchronize(gpu.stream.handle()) == cuda::kSuccess, "ends");
    check(memory[static_cast<std::size_t>(rank)].expired(), "the memory is handed back");
  });
  machine.cuda.release_all();
}

TEST_CASE("cuda ipc handover: a rank that dies within the trial leaves nothing waiting") {
  const IpcHandover handover = GENERATE(IpcHandover::Flags, IpcHandover::Kernels);
  INFO(name_of(handover));
  const char* const call =
      handover == IpcHandover::Flags ? "cuStreamBatchMemOp_v2" : "cuLaunchKernel";
  constexpr int kRanks = 3;
  FakeMachine machine({.devices = kRanks});
  CudaOptions options = cuda_options_of(machine);
  options.ipc_handover = handover;
  options.ipc_patience = std::chrono::minutes(1);
  std::barrier together(kRanks);
  inproc::Group group(kRanks);
  run_ranks(kRanks, [&](int rank) {
    ProgramGpu gpu(machine.cuda.api(), rank);
    Runtime runtime(gpu_options_of(group, rank, options));
    // What the dead rank tells in the trial never comes: behind the streams of the workbench, for
    // what is copied up, and for what is written before.
    if (rank == 2) machine.cuda.hold_new(2, 3);
    together.arrive_and_wait();
    GpuSum sum(runtime, gpu, kCount);
    const Work work = sum.start();
    // Each rank tells the others, and waits for them.
    while (machine.cuda.calls(call) < 2 * kRanks) std::this_thread::yield();
    if (rank == 2) {
      group.kill(2);
      return;
    }
    const Death death = death_of([&] { work.wait(); });
    check(death.rank == 2, "rank 2 is lost: " + death.text);
  });
  CHECK(machine.cuda.contexts_on(0) == 0);
  CHECK(machine.cuda.contexts_on(1) == 0);
  // The dead rank's trial hangs, and what it uses is still there.
  CHECK(machine.cuda.contexts_on(2) > 0);
  machine.cuda.release_all();
}

TEST_CASE("cuda ipc handover: waits of all sets end at once, as one may be behind another") {
  constexpr int kRanks = 3;
  FakeMachine machine({.devices = kRanks});
  CudaOptions options = cuda_options_of(machine);
  options.ipc_handover = IpcHandover::Flags;
  std::vector<std::unique_ptr<ProgramGpu>> gpus;
  for (int rank = 0; rank < kRanks; ++rank) {
    gpus.push_back(std::make_unique<ProgramGpu>(machine.cuda.api(), rank));
  }
  std::barrier together(kRanks);
  inproc::Group group(kRanks);
  run_ranks(kRanks, [&](int rank) {
    ProgramGpu& gpu = *gpus[static_cast<std::size_t>(rank)];
    Runtime runtime(gpu_options_of(group, rank, options));
    const ProcessSet pair = runtime.add_process_set({0, 1});
    const auto start = [&](const ProcessSet& set, const char* name, std::weak_ptr<void>& memory) {
      auto sum = std::make_shared<GpuSum>(runtime, gpu, kCount);
      memory = sum;
      Request request = sum->request(name);
      request.set = set;
      request.keep_alive = std::move(sum);
      return runtime.submit(std::move(request));
    };
    std::weak_ptr<void> of_pair, of_all;
    // Both kinds are connected, before a GPU never comes to its part.
    if (rank < 2) start(pair, "first of two", of_pair).wait();
    sum_on_gpu(runtime, gpu, kCount);
    if (rank == 1) machine.cuda.hold(gpu.stream.handle());
    Work of_two;
    if (rank < 2) {
      of_two = start(pair, "late of two", of_pair);
      of_two.wait_on(gpu.stream.handle());
    }
    // Of rank 0 behind that of the two.
    const Work work = start(ProcessSet(), "late of all", of_all);
    work.wait_on(gpu.stream.handle());
    together.arrive_and_wait();
    if (rank == 1) {
      group.kill(1);
      return;
    }
    const Death death = death_of([&] { work.wait(); });
    check(death.rank == 1, "rank 1 is lost: " + death.text);
    if (rank == 0) check(death_of([&] { of_two.wait(); }) == death, "so it is of the two");
    check(of_pair.expired() && of_all.expired(), "the memory of both is handed back");
  });
  machine.cuda.release_all();
}
