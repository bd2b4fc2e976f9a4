// SPDX-License-Identifier: Apache-2.0
// The kernels of kernel_list.h.
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
