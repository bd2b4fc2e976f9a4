// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backends/cuda/cuda.h"
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

/// Of the backend, over the fake: small enough that chunks, shares and pieces are many.
CudaOptions cuda_options_of(const FakeMachine& machine);

/// Of one rank with a GPU. On the CPU the ranks of a host reduce in shared memory, those of several
/// by the backend of the group.
RuntimeOptions gpu_options_of(const inproc::Group& group, int rank, const CudaOptions& cuda,
                              const std::string& cpu_backend = "shm",
                              const Config& config = test_config());

/// Runs ranks with GPUs: rank r is on GPU r % `devices`.
void run_gpu_ranks(FakeMachine& machine, int size, int devices, const CudaOptions& cuda,
                   const std::function<void(Runtime& runtime, ProgramGpu& gpu)>& body,
                   const Config& config = test_config());

/// A sum on a GPU over all ranks, in place, of values that tell the rank.
class GpuSum {
 public:
  GpuSum(Runtime& runtime, ProgramGpu& gpu, std::size_t count);

  /// To be submitted; the program may change it.
  Request request(const std::string& name = {});
  Work start(const std::string& name = {}) { return runtime_->submit(request(name)); }
  /// Waits for it, and throws CheckFailed unless it has the sum of ranks 1 to `ranks` (0: all).
  void check_result(const Work& work, int ranks = 0) const;

  void write(float value);
  std::vector<float> read() const;
  const GpuTensor& tensor() const noexcept { return tensor_; }

 private:
  Runtime* runtime_;
  ProgramGpu* gpu_;
  std::size_t count_;
  GpuTensor tensor_;
};

/// One of them, from the beginning to the end.
void sum_on_gpu(Runtime& runtime, ProgramGpu& gpu, std::size_t count);

/// Of the backend for GPUs on this rank.
inline std::uint64_t cuda_counter(const Runtime& runtime, const std::string& name) {
  return counter_of(runtime, "cuda", name);
}

}  // namespace ronde::test
