// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/direct_operations.h"

#include "backends/cuda/ipc_operations.h"

namespace ronde::cuda {

DirectOperations::DirectOperations(Workbench& bench, DirectLink& link, CudaCounters& counters)
    : Collectives(bench, counters, link.size(), link.own(),
                  bench.fusion_bytes() / (2 * kPartAlignment) * kPartAlignment),
      link_(link) {}

std::size_t DirectOperations::most_ranks(const CudaOptions& options) noexcept {
  return IpcOperations::buffer_bytes(options) / 2 / kPartAlignment;
}

Steps DirectOperations::exchange(Pattern pattern, RankParts to, RankParts from, std::size_t width) {
  const bool gathers = pattern == Pattern::Gather;
  const std::size_t stride = to.each * width;
  const DevicePointer arrivals =
      gathers ? packed() : bench_.fusion() + (half_bytes_ - offset_of_half());
  arrived_ = {arrivals, stride, ranks_};
  co_await bench_.reach();
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
void DirectOperations::reduce(DevicePointer target, std::size_t count, const Travel& travel) {
  if (count == 0) return;
  bench_.stream().copy(arrived_.first + own_ * arrived_.bytes, parts_[own_], count * travel.width(),
                       "copying within the GPU");
  bench_.kernels().reduce(bench_.stream(), target, arrived_, count, travel.reduction());
}

Steps DirectOperations::allreduce(AllreduceCall call) {
  const Travel travel = travel_of(call.dtype, call.op, call.prescale, call.postscale,
                                  call.divisor(ranks_), call.wire_dtype);
  gpu::ChunkLayout layout = layout_of(call, travel);
  while (layout.next()) {
    begin_chunk();
    pack(layout, travel);
    co_await two_shot(layout, travel);
  }
}

}  // namespace ronde::cuda
