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

/// Returns why the MPI library cannot send from memory of GPUs, as it reports; empty if it reports
/// that it can. A trial has to prove that as well: Open MPI reports support if it was built for
/// GPUs, even where the transport in use has none. `api`: loaded from the process itself
/// (vendor::kThisProcess).
std::string why_not_cuda(const GpuSupportApi& api);

}  // namespace ronde::mpi

namespace ronde {

/// Makes a second backend like that of mpi_backend_factory(), for messages in memory of GPUs, which
/// a trial has to prove first. Its `problem` asks the library whether it takes addresses of GPUs,
/// once MPI is initialised. It does not serve process sets: their messages share one communicator,
/// on which the messages of a failed trial would match others.
BackendFactory gpu_aware_mpi_factory(
    const MpiOptions& options, const vendor::SymbolLookup& symbols = vendor::dynamic_symbols());

/// Wraps every call of MPI that Ronde makes in this process: MPI may progress messages in memory of
/// GPUs in any of them.
vendor::WrapCalls wrap_mpi_calls();

}  // namespace ronde
