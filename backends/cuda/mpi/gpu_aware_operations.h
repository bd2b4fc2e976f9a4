// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "backends/cuda/base/collectives.h"
#include "ronde/backend.h"

namespace ronde::cuda {

/// Collectives by messages of an MPI that takes addresses of GPUs. Parts for this rank arrive in
/// the half that is not packed; in a gathering at their own positions. No thread blocks: MPI is
/// called once the GPU has finished with the memory.
///
/// Note [Messages alone]
/// Only sends and receives of such an MPI are used. Open MPI's non-blocking collectives take no
/// addresses of GPUs, and reductions with Ronde's own operators would run on the CPU, which cannot
/// read that memory. Ronde's kernels reduce in rank order, to the same bits as by CUDA IPC. Two
/// ranks exchange all messages in the order of operations, so one tag is enough.
///
/// Note [Memory of direct messages]
/// Only Ronde's own memory is sent and received, never the program's: MPI requests cannot be
/// cancelled, and MPI may still write after the group has failed and the program has its tensors
/// back. Ronde keeps its memory then (has_pending()). MPI registers it only once.
///
/// Thread-safety: as Collectives.
class GpuAwareOperations final : public Collectives {
 public:
  /// All outlive it. `messages`: sends and receives memory of GPUs.
  GpuAwareOperations(GpuResources& resources, Backend& messages, CudaCounters& counters,
                     std::size_t ranks, std::size_t own);

  Steps allreduce(AllreduceCall call) override;

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
  KernelSet::Strided arrived_;  ///< the parts of the last exchange, without this rank's own
};

}  // namespace ronde::cuda
