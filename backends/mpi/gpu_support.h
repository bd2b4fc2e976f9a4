// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backends/vendor/api_table.h"

namespace ronde::mpi {

/// The functions by which MPI libraries say whether they take addresses of GPUs. No standard has
/// them: each library has some or none.
///
/// Thread-safety: the functions are called under MpiEnvironment's lock, after MPI_Init.
struct GpuSupportApi : vendor::ApiTable {
  static constexpr vendor::Need kOptional = vendor::Need::Optional;
  /// MPICH 4 and what is made of it.
  vendor::Entry<int, int, int*> query_support{*this, "MPIX_GPU_query_support", kOptional};
  /// Open MPI, and MPICH as well.
  vendor::Entry<int> query_cuda_support{*this, "MPIX_Query_cuda_support", kOptional};
};

/// Why messages cannot be in memory of GPUs, as the MPI library says; empty if it says that they
/// can. That has to be proven as well: Open MPI says so where it was built for GPUs, with a
/// transport in use that cannot. `api` was loaded from the process itself (vendor::kThisProcess).
std::string why_not_cuda(const GpuSupportApi& api);

}  // namespace ronde::mpi
