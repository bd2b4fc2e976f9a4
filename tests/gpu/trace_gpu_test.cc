// SPDX-License-Identifier: Apache-2.0
// A trace of the driver's calls that wait for the GPU, or may: a step of training makes none.
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "backends/compose.h"
#include "backends/cuda/cuda.h"
#include "gpu_driver.h"
#include "gpu_tensor.h"
#include "ronde/runtime.h"
#include "tests/support/ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::array kTraced = {
    "cuStreamSynchronize", "cuEventSynchronize",  "cuMemFree_v2",
    "cuMemFreeHost",       "cuMemHostUnregister", "cuIpcCloseMemHandle",
    "cuMemAlloc_v2",       "cuMemHostAlloc",      "cuMemHostRegister_v2"};
std::array<void*, kTraced.size()> real_functions;
std::array<std::atomic<int>, kTraced.size()> calls;

template <std::size_t kWhich, typename... Arguments>
cuda::Result traced(Arguments... arguments) {
  ++calls[kWhich];
  return reinterpret_cast<cuda::Result (*)(Arguments...)>(real_functions[kWhich])(arguments...);
}

/// In the order of kTraced.
const std::array<void*, kTraced.size()> kTraces = {
    reinterpret_cast<void*>(&traced<0, cuda::StreamHandle>),
    reinterpret_cast<void*>(&traced<1, cuda::EventHandle>),
    reinterpret_cast<void*>(&traced<2, cuda::DevicePointer>),
    reinterpret_cast<void*>(&traced<3, void*>),
    reinterpret_cast<void*>(&traced<4, void*>),
    reinterpret_cast<void*>(&traced<5, cuda::DevicePointer>),
    reinterpret_cast<void*>(&traced<6, cuda::DevicePointer*, std::size_t>),
    reinterpret_cast<void*>(&traced<7, void**, std::size_t, unsigned>),
    reinterpret_cast<void*>(&traced<8, void*, std::size_t, unsigned>)};

/// The driver, with a count of these calls of Ronde's.
vendor::SymbolLookup traced_symbols() {
  return [symbols = vendor::dynamic_symbols()](const char* library, const char* symbol,
                                               std::string& error) -> void* {
    void* const function = symbols(library, symbol, error);
    for (std::size_t i = 0; function != nullptr && i < kTraced.size(); ++i) {
      if (std::strcmp(symbol, kTraced[i]) != 0) continue;
      real_functions[i] = function;
      return kTraces[i];
    }
    return function;
  };
}

std::string calls_since_zero() {
  std::string text;
  for (std::size_t i = 0; i < kTraced.size(); ++i) {
    if (calls[i] > 0) text += std::string(kTraced[i]) + " " + std::to_string(calls[i]) + "\n";
  }
  return text;
}

/// As DistributedOptimizer does it: all gradients are submitted, and the stream waits for them.
void step(Runtime& runtime, ProgramGpu& gpu, std::vector<GpuTensor>& gradients, std::size_t count) {
  std::vector<Work> works;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    Request request;
    request.name = "gradient " + std::to_string(i);
    request.shape = {static_cast<std::int64_t>(count)};
    request.input = request.output = gradients[i].data();
    request.device = {.kind = DeviceKind::Cuda, .index = gpu.context->index()};
    request.stream = gpu.stream.handle();
    works.push_back(runtime.submit(std::move(request)));
  }
  for (const Work& work : works) work.wait_on(gpu.stream.handle());
}

}  // namespace

TEST_CASE("gpu: cuda steps of training make no call that waits for the device, or may") {
  const auto driver = gpu_driver();
  RuntimeOptions options;
  options.config = load_config_from_environment().config;
  options.config.log_level = "warning";
  options.config.gpu_backend = "mpi";
  BuiltIn built_in = compose_built_in(options.config);
  CudaOptions cuda_options;
  cuda_options.symbols = traced_symbols();
  options.make_transport = std::move(built_in.make_transport);
  options.make_board = std::move(built_in.make_board);
  options.backends = std::move(built_in.backends);
  options.device_backends["mpi"] = cuda_backend_factory(cuda_options);
  Runtime runtime(std::move(options));
  int gpus = 0;
  cuda::check(*driver, "counting GPUs", driver->device_count, &gpus);
  ProgramGpu gpu(driver, runtime.topology().local_rank % gpus);
  constexpr std::size_t kCount = 50'000;
  std::vector<GpuTensor> gradients;
  for (int i = 0; i < 40; ++i) gradients.emplace_back(gpu, Bytes(kCount * sizeof(float)));
  for (int warm_up = 0; warm_up < 20; ++warm_up) step(runtime, gpu, gradients, kCount);
  runtime.run([] {
    Request barrier;
    barrier.kind = Collective::Barrier;
    return barrier;
  }());
  for (std::atomic<int>& count : calls) count = 0;
  for (int i = 0; i < 50; ++i) step(runtime, gpu, gradients, kCount);
  CHECK(calls_since_zero() == "");
  runtime.shutdown();
}
