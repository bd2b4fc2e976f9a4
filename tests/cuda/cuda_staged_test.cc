// SPDX-License-Identifier: Apache-2.0
// GPUs whose data goes through the host: where it does, in which pieces, and with what memory.
#include <catch2/catch.hpp>
#include <string>

#include "gpu_exercise.h"
#include "gpu_ranks.h"
#include "tests/support/captured_errors.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 50'000;

}  // namespace

TEST_CASE("cuda staged: RONDE_CUDA_IPC=0 stages everything, and says nothing of it") {
  const CapturedErrors errors;
  FakeMachine machine;
  run_gpu_ranks(
      machine, 3, 1, cuda_options_of(machine, kStaged),
      [](Runtime& runtime, ProgramGpu& gpu) {
        sum_on_gpu(runtime, gpu, kCount);
        check_counters(runtime, {{"staged_operations", 1},
                                 {"staged_bytes", 4 * kCount},
                                 {"ipc_operations", 0},
                                 {"handovers", 0}});
      },
      warning_config());
  CHECK(errors.text().empty());
  CHECK(machine.cuda.calls("cuIpcGetMemHandle") == 0);
}

TEST_CASE("cuda staged: ranks on several hosts stage everything, with the bits of the CPU") {
  const std::vector<int> host_of = GENERATE(std::vector<int>{0, 1}, std::vector<int>{0, 0, 1});
  const auto body = GENERATE(exercise_exchanges, exercise_sizes, exercise_messages);
  FakeMachine machine;
  const CudaOptions options = cuda_options_of(machine);
  const inproc::Group group(host_of);
  run_ranks(static_cast<int>(host_of.size()), [&](int rank) {
    ProgramGpu gpu(machine.cuda.api(), 0);
    Runtime runtime(gpu_options_of(group, rank, options, "inproc"));
    body(runtime, gpu);
    check_counters(runtime, {{"ipc_operations", 0}});
    check(cuda_counter(runtime, "staged_operations") > 0, "staged");
    runtime.shutdown();
  });
  CHECK(machine.cuda.calls("cuIpcGetMemHandle") == 0);
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda staged: pieces of any size give the same sums") {
  FakeMachine machine;
  CudaOptions options = cuda_options_of(machine, kStaged);
  options.staged_piece_bytes = GENERATE(16, 4096, 65536, 1 << 20);
  run_gpu_ranks(machine, 2, 1, options, [](Runtime& runtime, ProgramGpu& gpu) {
    for (const std::size_t count : {1, 3, 4, 5, 4095, 4097}) sum_on_gpu(runtime, gpu, count);
  });
}

TEST_CASE("cuda staged: page-locked memory is kept with the cache, and given up without") {
  constexpr int kSteps = 5;
  const bool cache = GENERATE(true, false);
  FakeMachine machine;
  CudaOptions options = cuda_options_of(machine, kStaged);
  options.registration_cache = cache;
  run_gpu_ranks(machine, 1, 1, options, [&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    const int before = machine.cuda.calls("cuMemHostAlloc");
    for (int step = 0; step < kSteps; ++step) sum_on_gpu(runtime, gpu, kCount);
    const int more = machine.cuda.calls("cuMemHostAlloc") - before;
    check(cache ? more == 0 : more >= 3 * kSteps, std::to_string(more) + " blocks pinned");
  });
}

TEST_CASE("cuda staged: a rank without memory for its result fails alone, the others get theirs") {
  FakeMachine machine;
  const CudaOptions options = cuda_options_of(machine, GENERATE(kIpc, kStaged));
  run_gpu_ranks(machine, 2, 1, options, [](Runtime& runtime, ProgramGpu& gpu) {
    exercise_missing_results(runtime, gpu);
    sum_on_gpu(runtime, gpu, kCount);
  });
}
