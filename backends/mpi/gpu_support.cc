// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/gpu_support.h"

namespace ronde::mpi {
namespace {

constexpr int kCuda = 0;  // MPIX_GPU_SUPPORT_CUDA

}  // namespace

std::string why_not_cuda(const GpuSupportApi& api) {
  bool is_supported = false;
  if (api.query_support) {
    int supported = 0;
    // A library that fails does not know the kind.
    is_supported = api.query_support(kCuda, &supported) == 0 && supported != 0;
  } else if (api.query_cuda_support) {
    is_supported = api.query_cuda_support() == 1;
  } else {
    return "the MPI library does not say whether it takes addresses of GPUs";
  }
  return is_supported ? "" : "the MPI library says that it takes no addresses of GPUs";
}

}  // namespace ronde::mpi
