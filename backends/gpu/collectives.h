// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/gpu/base/chunk_layout.h"
#include "backends/gpu/gpu_resources.h"
#include "backends/gpu/kernels/moves.h"
#include "core/src/base/steps.h"

namespace ronde::cuda {

/// Collectives that move data from GPU to GPU, in chunks through the fusion buffer: each rank packs
/// its input into a half of the buffer, an exchange (of a derived class) makes it available to the
/// peers, and each rank unpacks or reduces what it needs.
///
/// In a reduction each rank gets its share of the elements from every peer, reduces them in rank
/// order, for equal bits, and shares the result with all (an allreduce, a *two-shot*) or keeps it.
///
/// Thread-safety: one thread at a time, one operation at a time.
class Collectives {
 public:
  virtual ~Collectives() = default;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  /// Each of these ends once all work is queued on the resources' stream.
  virtual Steps allreduce(AllreduceCall call);
  Steps allgather(AllgatherCall call);
  Steps alltoall(AlltoallCall call);
  Steps reducescatter(ReducescatterCall call);

 protected:
  /// Alignment of parts in bytes, for the widest accesses.
  static constexpr std::size_t kPartAlignment = 16;

  /// The first two outlive it. `half_bytes`: the size of a half of the fusion buffer, which has
  /// room for kPartAlignment bytes of each of `ranks`.
  Collectives(GpuResources& resources, std::atomic<std::uint64_t>& packed_bytes, std::size_t ranks,
              std::size_t own, std::size_t half_bytes);

  enum class Pattern {
    Scatter,  ///< each rank has packed a part for every rank, at the position of that one
    Gather,   ///< each rank has packed one part for all, at its own position
  };
  /// Makes packed parts available to their receivers, and sets `parts_` to the parts for this rank,
  /// until the next chunk. The part at position r is `r * to.each` elements of `width` bytes behind
  /// packed(). `to`: the elements for each rank; `from`: those from each.
  virtual Steps exchange(Pattern pattern, RankParts to, RankParts from, std::size_t width) = 0;
  /// What limits reads of `parts_`.
  virtual Traffic traffic() const { return Traffic::Local; }
  virtual void begin_operation() {}
  virtual Steps end_operation() { co_return; }

  /// Has the next chunk packed into the other half.
  void begin_chunk() noexcept { half_ = 1 - half_; }
  std::size_t offset_of_half() const noexcept { return half_ * half_bytes_; }
  DevicePointer packed() const { return resources_.fusion() + offset_of_half(); }
  DevicePointer other_half() const { return resources_.fusion() + (1 - half_) * half_bytes_; }
  /// The elements of a part, if a half has one for each rank.
  std::size_t elements_of_part(std::size_t width) const noexcept;
  gpu::ChunkLayout layout_of(const AllreduceCall& call, const WireFormat& wire) const;
  void pack(const gpu::ChunkLayout& layout, const WireFormat& wire);
  /// The number of elements that each rank reduces; all shares but the last ones are equal.
  std::vector<std::size_t> shares_of(std::size_t extent, const WireFormat& wire) const;
  /// The rank that this one reads from in turn `turn`, itself last: if all ranks began with the
  /// same one, its link would be the bottleneck.
  std::size_t source(std::size_t turn) const noexcept { return (own_ + 1 + turn) % ranks_; }
  /// Queues the reduction of `parts_`.
  virtual void reduce(DevicePointer target, std::size_t count, const WireFormat& wire);
  /// Reduces a packed chunk.
  Steps two_shot(const gpu::ChunkLayout& layout, const WireFormat& wire);

  GpuResources& resources_;
  const std::size_t ranks_;
  const std::size_t own_;
  const std::size_t half_bytes_;
  std::vector<DevicePointer> parts_;  ///< by rank

 private:
  void unpack(void* output, const RankParts& parts, const WireFormat& wire);

  std::atomic<std::uint64_t>& packed_bytes_;
  std::size_t half_ = 0;  ///< of the chunk in progress
};

}  // namespace ronde::cuda
