// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/mpi/gpu_aware_operations.h"

#include <iterator>
#include <utility>

namespace ronde::cuda {

GpuAwareOperations::GpuAwareOperations(GpuResources& resources, Backend& messages,
                                       CudaCounters& counters, std::size_t ranks, std::size_t own)
    : Collectives(resources, counters.packed_bytes, ranks, own,
                  resources.fusion_bytes() / (2 * kPartAlignment) * kPartAlignment),
      messages_(messages),
      counters_(counters) {}

Steps GpuAwareOperations::exchange(Pattern pattern, RankParts to, RankParts from,
                                   std::size_t width) {
  const std::size_t stride = to.each * width;
  const DevicePointer arrivals = pattern == Pattern::Gather ? packed() : other_half();
  co_await resources_.reach();
  start_messages(pattern, to, from, arrivals, width);
  co_await until([this] { return poll_messages(); });
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    parts_[rank] = (rank == own_ ? packed() : arrivals) + rank * stride;
  }
}

void GpuAwareOperations::start_messages(Pattern pattern, const RankParts& to, const RankParts& from,
                                        DevicePointer arrivals, std::size_t width) {
  // The loop runs on the coordinator's thread, or on one of the program that waits: an MPI that
  // takes addresses of GPUs expects their context on both.
  const Current current(*resources_.context());
  const std::size_t stride = to.each * width;
  for (std::size_t i = 1; i < ranks_; ++i) {
    // Each rank begins with another peer.
    const std::size_t sender = (own_ + ranks_ - i) % ranks_;
    const std::size_t receiver = (own_ + i) % ranks_;
    if (const std::size_t bytes = from.piece(sender) * width; bytes > 0) {
      pending_.push_back(messages_.recv({.output = writable(arrivals + sender * stride),
                                         .count = bytes,
                                         .dtype = DataType::U8,
                                         .peer = static_cast<int>(sender)}));
    }
    if (const std::size_t bytes = to.piece(receiver) * width; bytes > 0) {
      const DevicePointer part = packed() + (pattern == Pattern::Gather ? own_ : receiver) * stride;
      pending_.push_back(messages_.send({.input = pointer_to(part),
                                         .count = bytes,
                                         .dtype = DataType::U8,
                                         .peer = static_cast<int>(receiver)}));
      counters_.mpi_sent_bytes += bytes;
    }
  }
}

/// Whether all messages have ended. Throws Error if one failed.
bool GpuAwareOperations::poll_messages() {
  const Current current(*resources_.context());
  for (auto message = pending_.begin(); message != pending_.end();) {
    message = (*message)->poll() ? pending_.erase(message) : std::next(message);
  }
  return pending_.empty();
}

/// This rank's part is copied among those that have arrived, so that all are at equal distances, as
/// more ranks than a kernel takes pointers must have them.
void GpuAwareOperations::reduce(DevicePointer target, std::size_t count, const WireFormat& wire) {
  if (count == 0) return;
  const DevicePointer place = parts_[own_] - packed() + other_half();
  resources_.stream().copy(place, std::exchange(parts_[own_], place), count * wire.width(),
                           "copying within the GPU");
  Collectives::reduce(target, count, wire);
}

}  // namespace ronde::cuda
