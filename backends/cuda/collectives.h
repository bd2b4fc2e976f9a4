// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "backends/cuda/moves.h"
#include "backends/cuda/travel.h"
#include "backends/cuda/workbench.h"
#include "backends/gpu/chunk_layout.h"
#include "core/src/base/steps.h"

namespace ronde::cuda {

/// What the operations of a CudaBackend have done.
struct CudaCounters {
  std::atomic<std::uint64_t> ipc_operations{0}, staged_operations{0}, mpi_operations{0},
      one_shots{0}, two_shots{0}, across_hosts{0}, direct{0}, flag_handovers{0},
      kernel_handovers{0}, fusion_mappings{0}, packed_bytes{0}, staged_bytes{0};
};

/// The collectives of ranks that move data from GPU to GPU. All work in chunks through the fusion
/// buffer: each rank packs what it brings into a half of it, an exchange makes it reach the others,
/// and each rank unpacks or reduces what it needs. How an exchange is done is for derived classes.
///
/// In a reduction each rank gets its share of the elements from every other one, combines them in
/// the order of ranks, for equal bits, and gives the result to all (an allreduce, a *two-shot*) or
/// keeps it.
///
/// Thread-safety: one thread at a time, one operation at a time.
class Collectives {
 public:
  virtual ~Collectives() = default;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  /// Each ends once all is queued on the stream of the workbench.
  /// @{
  virtual Steps allreduce(AllreduceCall call) = 0;
  Steps allgather(AllgatherCall call);
  Steps alltoall(AlltoallCall call);
  Steps reducescatter(ReducescatterCall call);
  /// @}

 protected:
  /// Bytes at which parts begin, so that all is read and written in the widest steps.
  static constexpr std::size_t kPartAlignment = 16;

  /// The first two outlive it. `half_bytes`: of a half of the fusion buffer, which has room for
  /// kPartAlignment bytes of each of `ranks`.
  Collectives(Workbench& bench, CudaCounters& counters, std::size_t ranks, std::size_t own,
              std::size_t half_bytes);

  enum class Pattern {
    Scatter,  ///< each rank has packed a part for every rank, at the position of that one
    Gather,   ///< each rank has packed one part for all, at its own position
  };
  /// What all ranks have packed at packed() reaches those it is for: the part at position r lies
  /// `to.each` elements of `width` bytes times r behind packed(). `to`: the elements for each rank;
  /// `from`: those from each. Afterwards `parts_` tells where the parts for this rank lie, until
  /// the next chunk.
  virtual Steps exchange(Pattern pattern, RankParts to, RankParts from, std::size_t width) = 0;
  /// What limits the reading of `parts_`.
  virtual Traffic traffic() const { return Traffic::Local; }
  virtual void begin_operation() {}
  virtual Steps end_operation() { co_return; }

  /// The next chunk is packed into the other half.
  void begin_chunk() noexcept { half_ = 1 - half_; }
  std::size_t offset_of_half() const noexcept { return half_ * half_bytes_; }
  DevicePointer packed() const { return bench_.fusion() + offset_of_half(); }
  /// The elements in a half where each rank has a part in it.
  std::size_t elements_of_part(std::size_t width) const noexcept;
  gpu::ChunkLayout layout_of(const AllreduceCall& call, const Travel& travel) const;
  void pack(const gpu::ChunkLayout& layout, const Travel& travel);
  /// The elements that each rank reduces for all; those of a rank lie behind as many as the first
  /// rank has for each rank before it.
  std::vector<std::size_t> shares_of(std::size_t extent, const Travel& travel) const;
  /// The ranks in the order in which this one reads from them, itself last: if all began with the
  /// same rank, its link would limit them.
  std::size_t source(std::size_t turn) const noexcept { return (own_ + 1 + turn) % ranks_; }
  /// Combines what lies at `parts_`.
  virtual void reduce(DevicePointer target, std::size_t count, const Travel& travel);
  /// An allreduce of a chunk that is packed. `between`, where there is any, is done to this rank's
  /// share before the others get it; `longest`: elements of the largest share.
  using Between = std::function<Steps(DevicePointer share, std::size_t count, std::size_t longest)>;
  Steps two_shot(const gpu::ChunkLayout& layout, const Travel& travel, const Between& between = {});

  Workbench& bench_;
  CudaCounters& counters_;
  const std::size_t ranks_;
  const std::size_t own_;
  const std::size_t half_bytes_;
  std::vector<DevicePointer> parts_;  ///< by rank

 private:
  void unpack(void* output, const RankParts& parts, const Travel& travel);

  std::size_t half_ = 0;  ///< of the chunk in progress
};

}  // namespace ronde::cuda
