// SPDX-License-Identifier: Apache-2.0
// A rank that is killed while the others' GPU waits for it by CUDA IPC or NCCL. The hidden case is
// a rank.
#include <signal.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/gpu/hardware/gpu_runtime.h"
#include "tests/support/processes/file_ranks.h"
#include "tests/support/ranks/ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr int kGroupError = 9;
constexpr std::size_t kCount = 1'000'000;
/// What a GPU that waits for nobody takes for what is queued, many times over.
constexpr std::chrono::seconds kPatience{20};

RuntimeOptions runtime_options() {
  Config config = test_config();
  config.gpu_backend = started_with("BACKEND");
  return options_without_launcher(start_by_files(), config);
}

/// Whether all that is queued ends, in time.
std::string rest_of(const cuda::Stream& stream) {
  const auto deadline = Clock::now() + kPatience;
  try {
    while (!stream.is_idle()) {
      if (Clock::now() >= deadline) return "waits for ever";
      std::this_thread::yield();
    }
    return "is through";
  } catch (const Error& error) {
    return std::string("has failed: ") + error.what();
  }
}

std::string waiting_key(int rank) {
  return "waiting/" + std::to_string(rank);
}

/// Until the GPU of each is at work on what this rank holds up. One that has failed never is: then
/// this process ends, and what it would give back, which waits for its GPU, is left alone.
void wait_for_survivors() {
  const auto deadline = Clock::now() + kPatience;
  const KeyValueStart store = start_by_files();
  for (int rank = 0; rank < kRanks - 1; ++rank) {
    while (!store.get(waiting_key(rank))) {
      if (Clock::now() >= deadline) {
        std::cerr << waiting_key(rank) << " does not come\n";
        std::_Exit(EXIT_FAILURE);
      }
      std::this_thread::yield();
    }
  }
}

TEST_CASE("helper: a rank with a GPU", "[.]") {
  const auto driver = gpu_driver();
  Runtime runtime(runtime_options());
  ProgramGpu gpu(driver, 0);
  GpuTensor tensor(gpu, kCount * sizeof(float));
  GpuTensor gate(gpu, Bytes(sizeof(float)));
  runtime.run(sum_request_of(tensor, gpu, kCount));
  const bool is_nccl = started_with("BACKEND") == "nccl";
  std::cerr << "operations: "
            << (is_nccl ? counter_of(runtime, "nccl", "collectives")
                        : counter_of(runtime, "cuda", "ipc_operations"))
            << "\n";
  const bool is_victim = runtime.topology().rank == kRanks - 1;
  // What it brings is never ready.
  const std::array<cuda::DevicePointer, 1> closed = {
      reinterpret_cast<cuda::DevicePointer>(gate.data())};
  if (is_victim) gpu.stream.wait_for(closed, 1);
  const Work work = runtime.submit(sum_request_of(tensor, gpu, kCount));
  const auto begin = Clock::now();
  try {
    work.wait_on(gpu.stream.handle());
    if (is_victim) {
      wait_for_survivors();
      ::raise(SIGKILL);
    }
    if (gpu.stream.is_idle()) throw std::runtime_error("the GPU waits for nobody");
    start_by_files().put(waiting_key(runtime.topology().rank), "yes");
    work.wait();
  } catch (const GroupError& error) {
    std::cerr << "group " << error.failed_rank() << ": " << error.what() << "\n"
              << (Clock::now() - begin < kPatience ? "in time" : "late") << "\n"
              << "the GPU " << rest_of(gpu.stream) << "\n";
    std::_Exit(kGroupError);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
  }
  std::_Exit(EXIT_FAILURE);
}

void check_survivors(const std::string& backend) {
  const auto results = run_file_ranks(kRanks, "helper: a rank with a GPU", {{"BACKEND", backend}});
  for (int rank = 0; rank < kRanks - 1; ++rank) {
    const CommandResult& result = results[static_cast<std::size_t>(rank)];
    INFO(result.out << result.err);
    CHECK(result.exit_code == kGroupError);
    for (const char* const words :
         {"operations: 1\n", "group 2: rank 2 ", "in time", "the GPU is through"}) {
      CHECK_THAT(result.err, Contains(words));
    }
  }
}

}  // namespace

TEST_CASE("gpu: a rank is killed within an ipc operation, and no GPU waits for it") {
  static_cast<void>(gpu_driver());  // or the test is skipped
  check_survivors("cuda");
}

TEST_CASE("gpu: a rank is killed within an nccl operation, and no GPU waits for it") {
  need_nccl(kRanks);
  check_survivors("nccl");
}
