// SPDX-License-Identifier: Apache-2.0
// The kernels, one for each pair of types or type, which kernel_list.h names.
#include <cuda/atomic>

#include "flags.h"
#include "kernel_list.h"
#include "segments.h"

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

// A flag, as other GPUs and the host see it.
using Flag = cuda::atomic_ref<std::uint32_t, cuda::thread_scope_system>;

// Between two looks at what takes longer to look at than flags: host memory, the clock.
constexpr std::uint32_t kLooksAtFlags = 256;

// The clock of all of the GPU; it may be set back.
__device__ inline std::int64_t nanoseconds() {
  std::int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// One block, of which each thread has a flag. What the stream ran before happened before the
// release.
extern "C" __global__ void __launch_bounds__(kThreads)
    ronde_signal(const __grid_constant__ FlagArguments how) {
  if (threadIdx.x >= how.count) return;
  Flag(*how.flags[threadIdx.x]).store(how.value, cuda::memory_order_release);
}

// Likewise; what the stream runs next happens after the acquisition.
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
