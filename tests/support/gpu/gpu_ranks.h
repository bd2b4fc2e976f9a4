// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/cuda.h"
#include "tests/support/fakes/fake_cuda.h"
#include "tests/support/gpu/gpu_tensor.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {

/// A machine with fake GPUs, for ranks as threads.
struct FakeMachine {
  explicit FakeMachine(const FakeCuda::Options& options = {}) : cuda(options) {}
  FakeCuda cuda;
};

/// How data moves.
struct Way {
  const char* name;
  bool ipc = true;
  bool cache = true;
  std::uint64_t direct_bytes = 0;
};
constexpr Way kIpc{.name = "ipc"};
constexpr Way kDirect{.name = "ipc, mapped directly", .direct_bytes = 1};
constexpr Way kStaged{.name = "staged", .ipc = false};

/// Of the backend, over the fake: small enough that chunks, shares and pieces are many.
CudaOptions cuda_options_of(const FakeMachine& machine, const Way& way = kIpc);

/// Of one rank with a GPU, which logs warnings. On the CPU the ranks of a host reduce in shared
/// memory, those of several by the backend of the group.
RuntimeOptions gpu_options_of(const inproc::Group& group, int rank, const CudaOptions& cuda,
                              const std::string& cpu_backend = "shm");

/// Runs ranks with GPUs: rank r is on GPU r % `devices`. Checks that all that was acquired is
/// released in the end.
void run_gpu_ranks(FakeMachine& machine, int size, int devices, const CudaOptions& cuda,
                   const std::function<void(Runtime& runtime, ProgramGpu& gpu)>& body);

/// The same without a shutdown and without that check, for groups that die: `kill` kills the
/// calling rank. What a rank has queued on its GPU stays queued until all have ended.
using Kill = std::function<void()>;
void run_gpu_ranks_unchecked(
    FakeMachine& machine, int size, int devices, const CudaOptions& cuda,
    const std::function<void(Runtime& runtime, ProgramGpu& gpu, const Kill& kill)>& body);

/// A sum on a GPU over all ranks, in place, of values that tell the rank.
class GpuSum {
 public:
  GpuSum(Runtime& runtime, ProgramGpu& gpu, std::size_t count);

  /// To be submitted; the program may change it.
  Request request(const std::string& name = {}, ProcessSet set = kGlobalSet);
  /// To or from another rank, of the same elements.
  Request message(int peer, bool is_sent);
  Work start(const std::string& name = {}) { return runtime_->submit(request(name)); }
  /// Waits for it, and throws CheckFailed unless it has the sum over the ranks of the set.
  void check_result(const Work& work, ProcessSet set = kGlobalSet) const;
  /// Throws CheckFailed unless all elements are `expected`.
  void check_values(float expected, const std::string& what) const;

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
void sum_on_gpu(Runtime& runtime, ProgramGpu& gpu, std::size_t count, ProcessSet set = kGlobalSet);

/// Starts one whose tensor nothing but the operation owns, and `memory` watches.
Work start_owned(Runtime& runtime, ProgramGpu& gpu, std::size_t count, std::weak_ptr<void>& memory,
                 ProcessSet set = kGlobalSet);

/// Of the backend for GPUs on this rank.
inline std::uint64_t cuda_counter(const Runtime& runtime, const std::string& name) {
  return counter_of(runtime, "cuda", name);
}

/// Throws CheckFailed unless these counters of a backend have these values.
using Counters = std::vector<std::pair<std::string, std::uint64_t>>;
void check_counters(const Runtime& runtime, const Counters& expected,
                    const std::string& part = "cuda");

}  // namespace ronde::test
