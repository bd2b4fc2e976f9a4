// SPDX-License-Identifier: Apache-2.0
// The kernels of kernel_list.h, and those that signal and await flags.
#include <cuda/atomic>

#include "backends/gpu/kernels/kernel_list.h"
#include "backends/gpu/kernels/segments.h"

using namespace ronde::cuda::kernels;

__device__ inline Place place() {
  return {blockIdx.x, gridDim.x, threadIdx.x};
}

#define RONDE_COPY(name, From, To)                       \
  extern "C" __global__ void __launch_bounds__(kThreads) \
      name(const __grid_constant__ CopyArguments how) {  \
    copy_segments<From, To>(how, place());               \
  }
RONDE_COPY_KERNELS(RONDE_COPY)

#define RONDE_REDUCE(name, Element)                          \
  extern "C" __global__ void __launch_bounds__(kThreads)     \
      name(const __grid_constant__ ReductionArguments how) { \
    reduce_elements<Element>(how, place());                  \
  }
RONDE_REDUCE_KERNELS(RONDE_REDUCE)

// A flag, visible to other GPUs and the host.
using Flag = cuda::atomic_ref<std::uint32_t, cuda::thread_scope_system>;

// The number of polls of a flag between two reads of host memory and the clock, which take longer.
constexpr std::uint32_t kLooksAtFlags = 256;

// The clock of the GPU, which may be set back.
__device__ inline std::int64_t nanoseconds() {
  std::int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// One block, with a flag for each thread. The stream's earlier work happens before the release.
extern "C" __global__ void __launch_bounds__(kThreads)
    ronde_signal(const __grid_constant__ FlagArguments how) {
  if (threadIdx.x >= how.count) return;
  Flag(*how.flags[threadIdx.x]).store(how.value, cuda::memory_order_release);
}

// Likewise; the stream's later work happens after the acquisition.
extern "C" __global__ void __launch_bounds__(kThreads)
    ronde_await(const __grid_constant__ FlagArguments how) {
  if (threadIdx.x >= how.count) return;
  const Flag flag(*how.flags[threadIdx.x]);
  const Flag released(*const_cast<std::uint32_t*>(how.released));
  const std::int64_t begin = nanoseconds();
  std::uint32_t looks = 0;
  while (!has_reached(flag.load(cuda::memory_order_acquire), how.value)) {
    if (++looks % kLooksAtFlags == 0) {
      if (released.load(cuda::memory_order_relaxed) != 0) return;
      if (nanoseconds() - begin > how.limit_ns) __trap();
    }
    __nanosleep(64);
  }
}
