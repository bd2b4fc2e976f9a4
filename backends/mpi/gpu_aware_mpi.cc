// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/gpu_aware_mpi.h"

#include "backends/mpi/mpi_environment.h"

namespace ronde::mpi {

bool denies_cuda(const GpuSupportApi& api) {
  constexpr int kCuda = 0;  // MPIX_GPU_SUPPORT_CUDA
  if (api.query_support) {
    int supported = 0;
    // A library that fails does not know this kind of GPU.
    return api.query_support(kCuda, &supported) != 0 || supported == 0;
  }
  return api.query_cuda_support && api.query_cuda_support() != 1;
}

}  // namespace ronde::mpi

namespace ronde {

BackendFactory gpu_aware_mpi_factory(const MpiOptions& options,
                                     const vendor::SymbolLookup& symbols) {
  BackendFactory factory = mpi_backend_factory(options);
  factory.serves_sets = false;
  factory.problem = [symbols] {
    mpi::GpuSupportApi api;
    std::string problem = api.load(symbols, vendor::kThisProcess);
    if (!problem.empty()) return problem;
    mpi::MpiEnvironment::of_process()->call("asking MPI for its support of GPUs", [&] {
      if (mpi::denies_cuda(api)) {
        problem =
            "RONDE_GPU_AWARE_MPI=1, but the MPI library reports that it takes no addresses of "
            "GPUs: use a GPU-aware one, or leave the variable unset";
      }
      return MPI_SUCCESS;
    });
    return problem;
  };
  return factory;
}

}  // namespace ronde
