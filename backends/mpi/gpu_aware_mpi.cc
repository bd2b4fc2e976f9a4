// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/gpu_aware_mpi.h"

#include <utility>

#include "backends/mpi/mpi_environment.h"

namespace ronde::mpi {

std::string why_not_cuda(const GpuSupportApi& api) {
  constexpr int kCuda = 0;  // MPIX_GPU_SUPPORT_CUDA
  bool is_supported = false;
  if (api.query_support) {
    int supported = 0;
    // A library that fails does not know this kind of GPU.
    is_supported = api.query_support(kCuda, &supported) == 0 && supported != 0;
  } else if (api.query_cuda_support) {
    is_supported = api.query_cuda_support() == 1;
  } else {
    return "the MPI library does not say whether it takes addresses of GPUs";
  }
  return is_supported ? "" : "the MPI library says that it takes no addresses of GPUs";
}

}  // namespace ronde::mpi

namespace ronde {
namespace {

/// Returns why MPI cannot send from memory of GPUs; empty if it reports that it can.
std::string why_not(const vendor::SymbolLookup& symbols) {
  mpi::GpuSupportApi api;
  if (std::string problem = api.load(symbols, vendor::kThisProcess); !problem.empty()) {
    return problem;
  }
  std::string why;
  mpi::MpiEnvironment::of_process()->call("asking MPI for its support of GPUs", [&] {
    why = why_not_cuda(api);
    return MPI_SUCCESS;
  });
  return why;
}

}  // namespace

BackendFactory gpu_aware_mpi_factory(const MpiOptions& options,
                                     const vendor::SymbolLookup& symbols) {
  BackendFactory factory = mpi_backend_factory(options);
  factory.serves_sets = false;
  factory.problem = [symbols] { return why_not(symbols); };
  return factory;
}

vendor::WrapCalls wrap_mpi_calls() {
  return [](vendor::CallWrapper around) {
    return mpi::MpiEnvironment::of_process()->wrap_calls(std::move(around));
  };
}

}  // namespace ronde
