// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backends/mpi/mpi.h"
#include "backends/vendor/api_table.h"
#include "ronde/plugin/factory.h"

namespace ronde::mpi {

/// The functions by which MPI libraries say whether they take addresses of GPUs. They are not
/// standard: each library has some or none.
///
/// Thread-safety: the functions are called under MpiEnvironment's lock, after MPI_Init.
struct GpuSupportApi : vendor::ApiTable {
  static constexpr vendor::Need kOptional = vendor::Need::Optional;
  /// Exists in MPICH 4 and its derivatives.
  vendor::Entry<int, int, int*> query_support{*this, "MPIX_GPU_query_support", kOptional};
  /// Exists in Open MPI and MPICH.
  vendor::Entry<int> query_cuda_support{*this, "MPIX_Query_cuda_support", kOptional};
};

/// Whether the library reports that it takes no addresses of GPUs. One that has no such function
/// reports nothing. `api`: loaded from the process itself (vendor::kThisProcess).
bool denies_cuda(const GpuSupportApi& api);

}  // namespace ronde::mpi

namespace ronde {

/// Makes a second backend like that of mpi_backend_factory(), for messages in memory of GPUs
/// (RONDE_GPU_AWARE_MPI=1). Its `problem` is that the library reports that it takes no such
/// addresses. It does not serve process sets, whose messages would share tags with
/// those of the CPU.
BackendFactory gpu_aware_mpi_factory(
    const MpiOptions& options, const vendor::SymbolLookup& symbols = vendor::dynamic_symbols());

}  // namespace ronde
