// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "backends/cuda/base/counters.h"
#include "backends/gpu/collectives.h"
#include "ronde/backend.h"

namespace ronde::cuda {

/// Collectives by messages of an MPI that takes addresses of GPUs. Parts for this rank arrive in
/// the half that is not packed; in a gathering at their own positions. No thread blocks: MPI is
/// called once the GPU has finished with the memory.
///
/// Why only sends and receives are used, and only memory of Ronde's: docs/notes/gpu.md. Two ranks
/// exchange all messages in the order of operations, so one tag is enough.
///
/// Thread-safety: as Collectives.
class GpuAwareOperations final : public Collectives {
 public:
  /// All outlive it. `messages`: sends and receives memory of GPUs.
  GpuAwareOperations(GpuResources& resources, Backend& messages, CudaCounters& counters,
                     std::size_t ranks, std::size_t own);

  /// Whether messages have not ended: MPI may use their memory.
  bool has_pending() const noexcept { return !pending_.empty(); }

 private:
  Steps exchange(Pattern pattern, RankParts to, RankParts from, std::size_t width) override;
  void reduce(DevicePointer target, std::size_t count, const WireFormat& wire) override;
  void start_messages(Pattern pattern, const RankParts& to, const RankParts& from,
                      DevicePointer arrivals, std::size_t width);
  bool poll_messages();

  Backend& messages_;
  std::deque<std::unique_ptr<Operation>> pending_;
  CudaCounters& counters_;
};

}  // namespace ronde::cuda
