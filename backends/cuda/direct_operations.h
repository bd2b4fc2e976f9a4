// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "backends/cuda/direct_link.h"
#include "backends/cuda/ipc_operations.h"
#include "backends/cuda/moves.h"
#include "backends/cuda/travel.h"
#include "backends/cuda/workbench.h"
#include "backends/device/chunk_layout.h"
#include "backends/device/steps.h"

namespace ronde::cuda {

/// The operations of ranks whose MPI takes addresses of GPUs, in which each rank has something for
/// every other one. All work in chunks through the fusion
/// buffer: what a rank brings is packed into its first half, what comes from others arrives in the
/// second one, but for what is a result already. No thread waits: MPI is called once the GPU is
/// through with what it will touch.
///
/// In a reduction each rank gets its share of the elements from every other one, combines them in
/// the order of ranks, and gives the result to all (an allreduce) or keeps it: Note [Messages
/// alone].
///
/// Thread-safety: one thread at a time, one operation at a time.
class DirectOperations {
 public:
  /// All outlive it; `link` is proven.
  DirectOperations(Workbench& bench, DirectLink& link, CudaCounters& counters);

  /// Each ends once all is queued on the stream of the workbench.
  /// @{
  device::Steps allreduce(AllreduceCall call);
  device::Steps allgather(AllgatherCall call);
  device::Steps alltoall(AlltoallCall call);
  device::Steps reducescatter(ReducescatterCall call);
  /// @}

 private:
  /// What each rank gives to, and gets from, every one; from itself, it is copied within the GPU.
  /// Memory of the rank with number r is `stride` bytes times r behind the beginning.
  struct Exchange {
    DevicePointer from = 0;
    std::size_t from_stride = 0;
    std::function<std::size_t(std::size_t rank)> bytes_to = {};
    DevicePointer to = 0;
    std::size_t to_stride = 0;
    std::function<std::size_t(std::size_t rank)> bytes_from = {};
  };

  /// Where a kernel does not take the elements of all ranks, they are combined in steps.
  Travel travel_for(Travel travel) const;
  DevicePointer packed() const { return bench_.fusion(); }
  DevicePointer received() const { return bench_.fusion() + half_bytes_; }
  /// Of a half in which each rank has a part; at least one, as a half has 256 KiB
  /// (IpcOperations::buffer_bytes).
  std::size_t elements_of_part(std::size_t width) const noexcept;

  void pack(const device::ChunkLayout& layout, const Travel& travel);
  /// Each rank's part to its place in the output.
  void unpack_parts(void* output, const RankParts& parts, const Travel& travel);
  /// Combines the parts that were received.
  void reduce(std::size_t part_bytes, DevicePointer target, std::size_t count,
              const Travel& travel);
  device::Steps exchange(Exchange exchange);

  Workbench& bench_;
  DirectLink& link_;
  CudaCounters& counters_;
  const std::size_t ranks_;
  const std::size_t own_;
  const std::size_t half_bytes_;
};

}  // namespace ronde::cuda
