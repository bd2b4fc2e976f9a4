// SPDX-License-Identifier: Apache-2.0
// GPUs of several hosts: by CUDA IPC within each, through host memory between them.
#include <barrier>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "backends/cuda/staging/between_hosts.h"
#include "tests/support/gpu/gpu_aware_messages.h"
#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/gpu/gpu_ranks.h"
#include "tests/support/gpu/hosts_backend.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/harness/sanitizers.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 20'000;

/// Hosts with as many ranks each, whatever the ranks' order.
using HostOf = std::vector<int>;
const std::vector<HostOf> kPlacements =
    kIsSanitized
        ? std::vector<HostOf>{{0, 1, 1, 0}}
        : std::vector<HostOf>{{0, 0, 1, 1}, {0, 1, 1, 0}, {0, 1, 0, 1, 0, 1}, {0, 0, 1, 1, 2, 2}};

/// So small a limit that most of what is exercised crosses hosts.
CudaOptions two_level_options(const FakeMachine& machine) {
  CudaOptions options = cuda_options_of(machine);
  options.one_shot_bytes = 256;
  return options;
}

/// Rank r is on the GPU of its host. Checks that all that was acquired is released in the end.
void run_gpu_hosts(FakeMachine& machine, const std::vector<int>& host_of, const CudaOptions& cuda,
                   const std::function<void(Runtime& runtime, ProgramGpu& gpu)>& body,
                   const std::string& cpu_backend = "hosts") {
  HostsBackends hosts(host_of);
  run_ranks(hosts.size(), [&](int rank) {
    ProgramGpu gpu(machine.cuda.api(), host_of[static_cast<std::size_t>(rank)]);
    RuntimeOptions options = gpu_options_of(hosts.group(), rank, cuda, cpu_backend);
    options.backends["hosts"] = hosts.factory();
    Runtime runtime(options);
    body(runtime, gpu);
    runtime.shutdown();
  });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

}  // namespace

TEST_CASE("cuda hosts: sums over hosts have the bits of the CPU's backend for them") {
  const std::vector<int> host_of = GENERATE(from_range(kPlacements));
  const auto body = GENERATE(exercise_allreduces, exercise_wire_dtypes, exercise_sizes);
  FakeMachine machine({.devices = 3});
  run_gpu_hosts(
      machine, host_of, two_level_options(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
        body(runtime, gpu);
        check(cuda_counter(runtime, "across_hosts") > 0, "sums crossed hosts");
        check_counters(runtime,
                       {{"two_shots", cuda_counter(runtime, "across_hosts")}, {"one_shots", 0}});
      });
}

TEST_CASE("cuda hosts: each rank copies its share alone; what is small, and no sum, is staged") {
  FakeMachine machine({.devices = 2});
  CudaOptions options = cuda_options_of(machine);
  options.registration_cache = GENERATE(true, false);
  run_gpu_hosts(machine, {0, 0, 1, 1}, options, [](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);  // two chunks of 64 KiB, of which each rank copies its share
    check_counters(runtime, {{"ipc_operations", 1},
                             {"across_hosts", 2},
                             {"staged_operations", 0},
                             {"staged_bytes", 4 * kCount / 2}});
    sum_on_gpu(runtime, gpu, 1024);
    check_counters(runtime, {{"staged_operations", 1}});  // 4096 bytes are small
    GpuSum sum(runtime, gpu, kCount);
    Request request = sum.request();
    request.kind = Collective::Broadcast;
    runtime.submit(std::move(request)).wait();
    check_counters(runtime, {{"staged_operations", 2}, {"ipc_operations", 1}});
  });
}

TEST_CASE(
    "cuda hosts: with one rank each, or different numbers, they stage all, with the CPU's bits") {
  const std::vector<int> host_of =
      GENERATE(from_range(kIsSanitized ? std::vector<HostOf>{{0, 0, 1}}
                                       : std::vector<HostOf>{{0, 1}, {0, 0, 1}, {0, 1, 2, 0}}));
  const auto body = GENERATE(exercise_exchanges, exercise_sizes, exercise_messages);
  // The one takes segments, the other packs them, as MPI does.
  const auto cpu_backend = GENERATE(as<std::string>{}, "hosts", "inproc");
  FakeMachine machine({.devices = 3});
  run_gpu_hosts(
      machine, host_of, two_level_options(machine),
      [&](Runtime& runtime, ProgramGpu& gpu) {
        body(runtime, gpu);
        check(cuda_counter(runtime, "staged_operations") > 0, "staged");
        check_counters(runtime, {{"ipc_operations", 0}});
      },
      cpu_backend);
  CHECK(machine.cuda.calls("cuIpcGetMemHandle") == 0);
}

TEST_CASE("cuda hosts: sums that cross hosts and what is staged follow each other in any order") {
  const int seed = GENERATE(range(1, plain_or_sanitized(4, 2)));
  const auto body = GENERATE(exercise_sizes, exercise_exchanges);
  INFO("seed " << seed);
  FakeMachine machine({.devices = 2, .disorder = static_cast<unsigned>(seed)});
  run_gpu_hosts(machine, {0, 0, 1, 1}, two_level_options(machine),
                [&](Runtime& runtime, ProgramGpu& gpu) {
                  GpuSum sum(runtime, gpu, kCount);
                  const Work work = sum.start();
                  body(runtime, gpu);
                  sum.check_result(work);
                });
}

TEST_CASE("cuda hosts: beside CUDA IPC, an MPI that takes addresses of GPUs serves small sums") {
  FakeMachine machine({.devices = 2});
  const std::vector<int> host_of = {0, 0, 1, 1};
  GpuAwareMessages messages(inproc::Group(host_of).backend_factory());
  CudaOptions options = cuda_options_of(machine);
  options.gpu_aware_mpi = messages.factory();
  run_gpu_hosts(machine, host_of, options, [](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    check_counters(runtime, {{"ipc_operations", 1}, {"mpi_operations", 0}});
    sum_on_gpu(runtime, gpu, 1024);
    check_counters(runtime, {{"ipc_operations", 1}, {"mpi_operations", 1}});
    exercise_exchanges(runtime, gpu);
    exercise_messages(runtime, gpu);
    check_counters(runtime, {{"ipc_operations", 1}});
    check(cuda_counter(runtime, "mpi_operations") > 2, "exchanges by MPI, too");
    sum_on_gpu(runtime, gpu, kCount);
    check_counters(runtime, {{"ipc_operations", 2}});
  });
}

TEST_CASE("cuda hosts: exact sums of all sizes have one order, that of the CPU's backend") {
  FakeMachine machine({.devices = 2});
  const std::vector<int> host_of = {0, 1, 1, 0};
  GpuAwareMessages messages(inproc::Group(host_of).backend_factory());  // in the order of ranks
  CudaOptions options = cuda_options_of(machine);
  options.gpu_aware_mpi = messages.factory();
  options.exact = true;
  const auto body = GENERATE(exercise_allreduces, exercise_wire_dtypes, exercise_sizes);
  run_gpu_hosts(machine, host_of, options, [&](Runtime& runtime, ProgramGpu& gpu) {
    body(runtime, gpu);
    check_counters(runtime, {{"mpi_operations", 0}, {"staged_operations", 0}});
  });
}

TEST_CASE("cuda hosts: where CUDA IPC fails on one host, all hosts stage") {
  const CapturedErrors errors;
  FakeMachine machine({.devices = 2});
  machine.cuda.fail_on(1, "cuIpcOpenMemHandle_v2", cuda::kInvalidValue);
  run_gpu_hosts(machine, {0, 0, 1, 1}, cuda_options_of(machine),
                [](Runtime& runtime, ProgramGpu& gpu) {
                  for (int step = 0; step < 3; ++step) sum_on_gpu(runtime, gpu, kCount);
                  check_counters(runtime, {{"staged_operations", 3}, {"ipc_operations", 0}});
                });
  check_contains(errors.text(), "CUDA IPC cannot be used");
}

TEST_CASE("cuda hosts: a rank that fails while shares cross hosts fails the others") {
  const int nth = GENERATE(0, 2, 5, 9);
  const std::string function = GENERATE("cuMemcpyAsync", "cuLaunchKernel");
  INFO(function << ", call " << nth);
  FakeMachine machine({.devices = 2});
  const CudaOptions options = cuda_options_of(machine);
  std::barrier together(4);
  const std::vector<int> host_of = {0, 0, 1, 1};
  HostsBackends hosts(host_of);
  run_ranks(4, [&](int rank) {
    ProgramGpu gpu(machine.cuda.api(), rank == 3 ? 1 : 0);
    RuntimeOptions runtime_options = gpu_options_of(hosts.group(), rank, options, "hosts");
    runtime_options.backends["hosts"] = hosts.factory();
    Runtime runtime(runtime_options);
    sum_on_gpu(runtime, gpu, kCount);
    GpuSum sum(runtime, gpu, kCount);
    together.arrive_and_wait();
    if (rank == 3) machine.cuda.fail_on(1, function, cuda::kInvalidValue, 1, nth);
    const Death death = death_of([&] {
      for (int step = 0; step < 20; ++step) sum.start().wait();
    });
    check(death.rank == 3, "rank 3 is to blame: " + death.text);
  });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}
