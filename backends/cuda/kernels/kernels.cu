// SPDX-License-Identifier: Apache-2.0
// The kernels, one for each pair of types or type, which kernel_list.h names.
#include "kernel_list.h"
#include "segments.h"

using namespace ronde::cuda::kernels;

// `segments` is in memory of the GPU. A grid of as many blocks as there are tiles.
#define RONDE_COPY(name, From, To)                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads)                                         \
      name(const SegmentCopy* segments, std::uint32_t count, Scale scale, Operation operation) { \
    const SegmentCopy segment = segments[segment_of(segments, count, blockIdx.x)];               \
    copy_tile<From, To>(segment, blockIdx.x, threadIdx.x, scale, operation);                     \
  }
RONDE_COPY_KERNELS(RONDE_COPY)

#define RONDE_REDUCE(name, Element)                          \
  extern "C" __global__ void __launch_bounds__(kThreads)     \
      name(const __grid_constant__ ReductionArguments how) { \
    reduce_tile<Element>(how, blockIdx.x, threadIdx.x);      \
  }
RONDE_REDUCE_KERNELS(RONDE_REDUCE)
