// SPDX-License-Identifier: Apache-2.0
// The backend of GPUs without NCCL, by CUDA IPC and staged, on fake GPUs.
#include <catch2/catch.hpp>

#include "gpu_exercise.h"
#include "gpu_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

struct Way {
  const char* name;
  bool ipc;
  bool cache;
  std::uint64_t direct_bytes;
};

/// Runs `body` on 1, 2 and 3 ranks that share a GPU, on every way that data can take.
void on_every_way(const std::function<void(Runtime&, ProgramGpu&)>& body) {
  const Way way = GENERATE(Way{"ipc", true, true, 0}, Way{"staged", false, true, 0},
                           Way{"ipc, nothing registered", true, false, 0},
                           Way{"staged, nothing registered", false, false, 0},
                           Way{"ipc, mapped directly", true, true, 1});
  const int ranks = GENERATE(1, 2, 3);
  INFO(way.name << ", " << ranks << " ranks");
  FakeMachine machine;
  {
    CudaOptions options = cuda_options_of(machine);
    options.ipc = way.ipc;
    options.registration_cache = way.cache;
    options.ipc_direct_bytes = way.direct_bytes;
    run_gpu_ranks(machine, ranks, 1, options, body);
  }
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

}  // namespace

TEST_CASE("cuda: allreduces have the bits of shared memory, by ipc and staged") {
  on_every_way(exercise_allreduces);
}

TEST_CASE("cuda: elements that travel as halves have the bits of shared memory") {
  on_every_way(exercise_wire_dtypes);
}

TEST_CASE("cuda: exchanges have the bits of shared memory, by ipc and staged") {
  on_every_way(exercise_exchanges);
}

TEST_CASE("cuda: messages arrive, staged through the host") {
  on_every_way(exercise_messages);
}

TEST_CASE("cuda: tensors of all sizes have the bits of shared memory, by ipc and staged") {
  on_every_way(exercise_sizes);
}
