// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "backends/cuda/collectives.h"
#include "backends/cuda/cuda.h"
#include "backends/cuda/direct_link.h"

namespace ronde::cuda {

/// The collectives of ranks whose MPI takes addresses of GPUs: Note [Messages alone]. Parts for
/// this rank arrive in the half that is not packed, or at their own positions where all gather. No
/// thread waits: MPI is called once the GPU is through with what it will touch.
///
/// Thread-safety: as Collectives.
class DirectOperations final : public Collectives {
 public:
  /// All outlive it; `link` is proven.
  DirectOperations(Workbench& bench, DirectLink& link, CudaCounters& counters);

  /// For as many a half of the fusion buffer has room.
  static std::size_t most_ranks(const CudaOptions& options) noexcept;

  Steps allreduce(AllreduceCall call) override;

 private:
  Steps exchange(Pattern pattern, RankParts to, RankParts from, std::size_t width) override;
  void reduce(DevicePointer target, std::size_t count, const Travel& travel) override;

  DirectLink& link_;
  KernelSet::Strided arrived_;  ///< in the exchange before, this rank's own part left out
};

}  // namespace ronde::cuda
