// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "backends/cuda/base/collectives.h"
#include "backends/cuda/cuda.h"
#include "backends/cuda/mpi/gpu_aware_link.h"

namespace ronde::cuda {

/// Collectives by an MPI that takes addresses of GPUs: Note [Messages alone]. Parts for this rank
/// arrive in the half that is not packed; in a gathering at their own positions. No thread blocks:
/// MPI is called once the GPU has finished with the memory.
///
/// Thread-safety: as Collectives.
class GpuAwareOperations final : public Collectives {
 public:
  /// All outlive it; the trial of `link` has succeeded.
  GpuAwareOperations(GpuResources& resources, GpuAwareLink& link, CudaCounters& counters);

  /// The number of ranks for whose parts half of the fusion buffer has room.
  static std::size_t most_ranks(const CudaOptions& options) noexcept;

  Steps allreduce(AllreduceCall call) override;

 private:
  Steps exchange(Pattern pattern, RankParts to, RankParts from, std::size_t width) override;
  void reduce(DevicePointer target, std::size_t count, const WireFormat& wire) override;

  GpuAwareLink& link_;
  KernelSet::Strided arrived_;  ///< the parts of the last exchange, without this rank's own
};

}  // namespace ronde::cuda
