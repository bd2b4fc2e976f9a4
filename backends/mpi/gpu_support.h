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

/// What an MPI library says of itself. It has to be proven as well: Open MPI says yes where it was
/// built so, with a transport in use that cannot.
enum class GpuClaim { None, No, Yes };

/// `api` was loaded from the process itself (vendor::kThisProcess).
GpuClaim claimed_cuda_support(const GpuSupportApi& api);

/// "says that it takes addresses of GPUs", for logs.
std::string to_string(GpuClaim claim);

}  // namespace ronde::mpi
