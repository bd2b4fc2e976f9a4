// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/gpu_support.h"

namespace ronde::mpi {
namespace {

constexpr int kCuda = 0;  // MPIX_GPU_SUPPORT_CUDA

}  // namespace

GpuClaim claimed_cuda_support(const GpuSupportApi& api) {
  if (api.query_support) {
    int supported = 0;
    // One that fails does not know the kind.
    const bool answered = api.query_support(kCuda, &supported) == 0;
    return answered && supported != 0 ? GpuClaim::Yes : GpuClaim::No;
  }
  if (api.query_cuda_support) return api.query_cuda_support() == 1 ? GpuClaim::Yes : GpuClaim::No;
  return GpuClaim::None;
}

std::string to_string(GpuClaim claim) {
  switch (claim) {
    case GpuClaim::Yes:
      return "says that it takes addresses of GPUs";
    case GpuClaim::No:
      return "says that it takes no addresses of GPUs";
    case GpuClaim::None:
      break;
  }
  return "does not say whether it takes addresses of GPUs";
}

}  // namespace ronde::mpi
