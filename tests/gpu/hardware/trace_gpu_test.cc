// SPDX-License-Identifier: Apache-2.0
// A trace of the driver's calls that wait for the GPU, or may: a step of training makes none.
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "backends/cuda/cuda.h"
#include "tests/gpu/hardware/gpu_runtime.h"
#include "tests/support/ranks/ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 50'000;

constexpr std::array kTraced = {
    "cuStreamSynchronize", "cuMemFree_v2",         "cuMemFreeHost",
    "cuMemHostUnregister", "cuIpcCloseMemHandle",  "cuMemAlloc_v2",
    "cuMemHostAlloc",      "cuMemHostRegister_v2", "cuIpcOpenMemHandle_v2"};
constexpr std::size_t kAllocations = 5;  // and the one after it, of kTraced
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
    reinterpret_cast<void*>(&traced<1, cuda::DevicePointer>),
    reinterpret_cast<void*>(&traced<2, void*>),
    reinterpret_cast<void*>(&traced<3, void*>),
    reinterpret_cast<void*>(&traced<4, cuda::DevicePointer>),
    reinterpret_cast<void*>(&traced<5, cuda::DevicePointer*, std::size_t>),
    reinterpret_cast<void*>(&traced<6, void**, std::size_t, unsigned>),
    reinterpret_cast<void*>(&traced<7, void*, std::size_t, unsigned>),
    reinterpret_cast<void*>(&traced<8, cuda::DevicePointer*, cuda::IpcMemHandle, unsigned>)};

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
void step(Runtime& runtime, ProgramGpu& gpu, std::vector<GpuTensor>& gradients) {
  std::vector<Work> works;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    Request request = sum_request_of(gradients[i], gpu, kCount);
    request.name = "gradient " + std::to_string(i);
    works.push_back(runtime.submit(std::move(request)));
  }
  for (const Work& work : works) work.wait_on(gpu.stream.handle());
}

/// Steps of a program that looks at the loss now and then, by a driver that is not traced: of more
/// and more steps that are queued, more and more memory would be needed. At the end nothing is.
void train(Runtime& runtime, ProgramGpu& gpu, std::vector<GpuTensor>& gradients) {
  for (int round = 0; round < 25; ++round) {
    for (int i = 0; i < 2; ++i) step(runtime, gpu, gradients);
    static_cast<void>(gradients.front().read());
  }
  Request barrier;
  barrier.kind = Collective::Barrier;
  runtime.run(std::move(barrier));
}

}  // namespace

TEST_CASE("gpu: cuda steps of training make no call that waits for the device, or may", "[own]") {
  const auto driver = gpu_driver();
  CudaOptions cuda_options;
  cuda_options.symbols = traced_symbols();
  RuntimeOptions options = launched_options();
  options.device_backends["cuda"] = cuda_backend_factory(cuda_options);
  Runtime runtime(std::move(options));
  ProgramGpu gpu = gpu_of(driver, runtime);
  std::vector<GpuTensor> gradients;
  for (int i = 0; i < 40; ++i) gradients.emplace_back(gpu, Bytes(kCount * sizeof(float)));
  train(runtime, gpu, gradients);
  CHECK(calls[kAllocations] > 0);
  CHECK(calls[kAllocations + 1] > 0);
  for (std::atomic<int>& count : calls) count = 0;
  train(runtime, gpu, gradients);
  CHECK(calls_since_zero() == "");
  if (runtime.topology().size > 1) CHECK(counter_of(runtime, "cuda", "ipc_operations") > 0);
  runtime.shutdown();
}
