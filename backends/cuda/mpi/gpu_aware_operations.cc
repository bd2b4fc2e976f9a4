// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/mpi/gpu_aware_operations.h"

#include "backends/cuda/ipc/ipc_operations.h"

namespace ronde::cuda {

GpuAwareOperations::GpuAwareOperations(GpuResources& resources, GpuAwareLink& link,
                                       CudaCounters& counters)
    : Collectives(resources, counters, link.size(), link.own(),
                  resources.fusion_bytes() / (2 * kPartAlignment) * kPartAlignment),
      link_(link) {}

std::size_t GpuAwareOperations::most_ranks(const CudaOptions& options) noexcept {
  return IpcOperations::buffer_bytes(options) / 2 / kPartAlignment;
}

Steps GpuAwareOperations::exchange(Pattern pattern, RankParts to, RankParts from,
                                   std::size_t width) {
  const bool gathers = pattern == Pattern::Gather;
  const std::size_t stride = to.each * width;
  const DevicePointer arrivals =
      gathers ? packed() : resources_.fusion() + (half_bytes_ - offset_of_half());
  arrived_ = {arrivals, stride, ranks_};
  co_await resources_.reach();
  for (std::size_t i = 1; i < ranks_; ++i) {
    // Each rank begins with another peer.
    const std::size_t sender = (own_ + ranks_ - i) % ranks_;
    const std::size_t receiver = (own_ + i) % ranks_;
    if (const std::size_t bytes = from.piece(sender) * width; bytes > 0) {
      link_.receive(sender, arrivals + sender * stride, bytes);
    }
    if (const std::size_t bytes = to.piece(receiver) * width; bytes > 0) {
      link_.send(receiver, packed() + (gathers ? own_ : receiver) * stride, bytes);
    }
  }
  co_await until([this] { return link_.have_ended(); });
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    parts_[rank] = (rank == own_ ? packed() : arrivals) + rank * stride;
  }
}

/// This rank's part is copied among those that have arrived, so that all are at equal distances.
void GpuAwareOperations::reduce(DevicePointer target, std::size_t count, const WireFormat& wire) {
  if (count == 0) return;
  resources_.stream().copy(arrived_.first + own_ * arrived_.bytes, parts_[own_],
                           count * wire.width(), "copying within the GPU");
  resources_.kernels().reduce(resources_.stream(), target, arrived_, count, wire.reduction());
}

Steps GpuAwareOperations::allreduce(AllreduceCall call) {
  const WireFormat wire = wire_format_of(call.reduction(), call.wire_dtype);
  gpu::ChunkLayout layout = layout_of(call, wire);
  while (layout.next()) {
    begin_chunk();
    pack(layout, wire);
    co_await two_shot(layout, wire);
  }
}

}  // namespace ronde::cuda
