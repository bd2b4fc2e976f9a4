// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/gpu_aware_mpi.h"

#include <utility>

#include "backends/mpi/gpu_support.h"
#include "backends/mpi/mpi_environment.h"

namespace ronde {
namespace {

/// Why messages cannot be in memory of GPUs, as MPI says.
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
