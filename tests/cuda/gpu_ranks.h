// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "backends/cuda/cuda.h"
#include "backends/shm/shm.h"
#include "fake_cuda.h"
#include "fake_kernels.h"
#include "gpu_tensor.h"
#include "tests/support/ranks.h"

namespace ronde::test {

/// A machine with fake GPUs, for ranks as threads.
struct FakeMachine {
  explicit FakeMachine(const FakeCuda::Options& options = {}) : cuda(options) {
    add_ronde_kernels(cuda);
  }
  FakeCuda cuda;
};

/// Of the backend, over the fake: small enough that chunks and shares are many.
inline CudaOptions cuda_options_of(const FakeMachine& machine) {
  CudaOptions options;
  options.fusion_bytes = 65536;
  options.one_shot_bytes = 4096;
  options.staged_piece_bytes = 8192;
  options.symbols = machine.cuda.lookup();
  options.kernel_image = "an image";
  return options;
}

/// Runs ranks with GPUs: rank r is on GPU r % `devices`. On the CPU they reduce in shared memory.
inline void run_gpu_ranks(FakeMachine& machine, int size, int devices, const CudaOptions& cuda,
                          const std::function<void(Runtime& runtime, ProgramGpu& gpu)>& body,
                          const Config& config = test_config()) {
  const inproc::Group group(size);
  run_ranks(size, [&](int rank) {
    RuntimeOptions options = options_of(group, rank, config);
    options.config.cpu_backend = "shm";
    options.config.fusion_bytes = cuda.fusion_bytes;
    options.backends["shm"] = shm_backend_factory();
    options.device_backends["mpi"] = cuda_backend_factory(cuda);
    ProgramGpu gpu(machine.cuda.api(), rank % devices);
    Runtime runtime(std::move(options));
    body(runtime, gpu);
    runtime.shutdown();
  });
}

}  // namespace ronde::test
