// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gpu/nccl_ranks.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "backends/shm/shm.h"

namespace ronde::test {

namespace {

/// With those that have been joined a moment ago.
std::set<std::string> threads() {
  std::set<std::string> numbers;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    numbers.insert(thread.path().filename());
  }
  return numbers;
}

}  // namespace

NcclRanks::NcclRanks(int size, const FakeNccl::Options& nccl_options, const FakeCuda::Options& gpus)
    : GpuRanks(std::vector<int>(static_cast<std::size_t>(size)), gpus),
      nccl(cuda, nccl_options),
      threads_before_(threads()) {
  config.cpu_backend = "shm";
  config.fusion_bytes = 16384;
  options.driver_symbols = cuda.lookup();
  options.nccl_symbols = nccl.lookup();
  options.kernel_image = "an image";
  options.fusion_bytes = 2048;
}

RuntimeOptions NcclRanks::runtime_options(int rank) {
  RuntimeOptions runtime = options_of(group, rank, config);
  runtime.backends["shm"] = shm_backend_factory();
  BackendFactory factory = nccl_backend_factory(options);
  factory.create = [this, make = factory.create](BackendContext& context) {
    context.warn = [this, speaks = context.topology->rank == 0](const std::string& text) {
      if (speaks) warnings.push_back(text);
    };
    return make(context);
  };
  runtime.device_backends["nccl"] = factory;
  return runtime;
}

ProgramGpu NcclRanks::gpu(int rank) const {
  ProgramGpu own = GpuRanks::gpu(rank);
  own.is_exact = options.exact;
  return own;
}

void NcclRanks::fail_to_start(const std::function<void(const std::string& text)>& check_text) {
  run_ranks(size(), [&](int rank) {
    check_text(text_of<Error>([&] { Runtime runtime(runtime_options(rank)); }));
  });
  begin_job();
}

void NcclRanks::wait_for_threads() const {
  const std::set<std::string>& before = threads_before_;
  while (!std::ranges::includes(before, threads())) std::this_thread::yield();
  // By the locks of the fakes what they did comes before what follows.
  static_cast<void>(nccl.live());
  static_cast<void>(cuda.live());
}

void NcclRanks::end_connecting() {
  nccl.end_connecting();
  wait_for_threads();
}

void NcclRanks::check_clean() const {
  CHECK(nccl.misuses() == std::vector<std::string>{});
  CHECK(nccl.live() == FakeNccl::Live{});
  GpuRanks::check_clean();
}

void NcclRanks::check_recovery() {
  run([](Runtime& runtime, ProgramGpu& own) { sum_on_gpu(runtime, own, 3001); });
}

}  // namespace ronde::test
