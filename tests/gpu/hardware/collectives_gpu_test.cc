// SPDX-License-Identifier: Apache-2.0
// All collectives on a GPU that the ranks share, by every set-up, under a launcher.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/hardware/gpu_runtime.h"
#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/ranks/ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

struct SetUp {
  std::string name;
  bool ipc = false;
  bool cache = false;
  std::uint64_t direct_bytes = 0;
  std::string backend = "cuda";
};
const SetUp kMappedDirectly = {"by ipc, tensors mapped directly", true, true, 1};

/// As ctest and scripts/gpu_check.sh say.
int number_of_ranks() {
  const char* const ranks = std::getenv("RONDE_TEST_RANKS");
  return ranks == nullptr ? 1 : std::atoi(ranks);
}

RuntimeOptions options_of(const SetUp& set_up) {
  Config config = load_config_from_environment().config;
  if (std::getenv("RONDE_LOG_LEVEL") == nullptr) config.log_level = "warning";
  config.gpu_backend = set_up.backend;
  config.cuda_ipc = set_up.ipc;
  config.registration_cache = set_up.cache;
  config.cuda_ipc_direct_bytes = set_up.direct_bytes;
  config.fusion_bytes = std::uint64_t{1} << 20;  // so that chunks are many
  return test::options_of(std::move(config), compose_built_in(config));
}

void run(const SetUp& set_up, const std::vector<Exercise>& exercises) {
  const auto driver = gpu_driver();
  if (set_up.backend == "nccl") need_nccl(number_of_ranks());
  Runtime runtime(options_of(set_up));
  ProgramGpu gpu = gpu_of(driver, runtime);
  gpu.block_bytes = cuda::kBlockBytes;  // others are not mapped themselves
  for (const Exercise exercise : exercises) exercise(runtime, gpu);
  if (set_up.backend == "nccl") {
    for (const char* const way : {"direct_chunks", "packed_chunks", "chunks_in_order"}) {
      CHECK(counter_of(runtime, "nccl", way) > 0);
    }
  } else if (runtime.topology().size > 1) {
    const bool by_ipc = counter_of(runtime, "cuda", "ipc_operations") > 0;
    CHECK(by_ipc == set_up.ipc);
    // Not by the fusion buffer, silently.
    if (set_up.direct_bytes > 0) CHECK(counter_of(runtime, "cuda", "direct") > 0);
  }
  runtime.shutdown();
}

[[maybe_unused]] const bool kRegistered = [] {
  std::vector<Exercise> all;
  for (const auto& [what, exercise] : kExercises) all.push_back(exercise);
  const std::pair<SetUp, std::vector<Exercise>> rows[] = {
      {{"staged, nothing registered", false, false}, all},
      {{"staged", false, true}, all},
      {{"by ipc", true, true}, all},
      {{"by ipc without registration cache", true, false}, all},
      {kMappedDirectly, {exercise_allreduces, exercise_sizes}},
      {{.name = "by nccl", .cache = true, .backend = "nccl"}, all},
      {{.name = "by nccl without windows", .backend = "nccl"}, all}};
  for (const auto& [set_up, exercises] : rows) {
    add_case("gpu: cuda collectives give what the CPU's give, " + set_up.name, "[own]",
             [set_up = set_up, exercises = exercises] { run(set_up, exercises); });
  }
  return true;
}();

}  // namespace

TEST_CASE("gpu: allocations that come and go never meet a stale ipc registration", "[own]") {
  const auto driver = gpu_driver();
  Runtime runtime(options_of(kMappedDirectly));
  ProgramGpu gpu = gpu_of(driver, runtime);
  gpu.block_bytes = cuda::kBlockBytes;  // others are not mapped themselves
  const int rank = runtime.topology().rank;
  const int size = runtime.topology().size;
  for (int round = 0; round < 50; ++round) {
    // Of other sizes in turn, so that addresses repeat with other allocations behind them.
    const std::size_t count = 100'000 + static_cast<std::size_t>(round % 7) * 300'000;
    const auto filled = [count](int value) {
      return bytes_of(std::vector<float>(count, static_cast<float>(value)));
    };
    GpuTensor tensor(gpu, filled(rank + round));
    runtime.run(sum_request_of(tensor, gpu, count));
    if (tensor.read() != filled(size * (size - 1) / 2 + size * round)) FAIL("round " << round);
  }
  if (runtime.topology().size > 1) CHECK(counter_of(runtime, "cuda", "direct") > 0);
  runtime.shutdown();
}
