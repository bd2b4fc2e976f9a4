// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/device/chunk_layout.h"
#include "backends/nccl/in_order.h"
#include "backends/nccl/operation.h"
#include "backends/nccl/reduction_plan.h"

namespace ronde::nccl {

/// What the reductions have in common: chunks of a buffer that are packed, combined and unpacked.
class ReductionWork : public LaneWork {
 protected:
  ReductionWork(Links& links, const Placement& place, std::string doing,
                const ReductionRequest& request)
      : LaneWork(links, place, std::move(doing)),
        plan_(plan_reduction(request, size(), size() > options().most_inputs, options().exact)),
        width_(size_of(plan_.travel)) {}

  const ReductionPlan& plan() const noexcept { return plan_; }
  /// Bytes of an element on its way between the ranks.
  std::size_t width() const noexcept { return width_; }
  /// Elements that a share may have at most, where the ranks do it themselves.
  std::size_t most_share() const noexcept { return most_of_share(fusion_bytes(), size(), width_); }

  /// Queues the way into the buffer, and the one out of it. `beside`: as much memory of the buffer
  /// as the moves' own there, for what is rounded between.
  /// @{
  void pack(const Moves& moves, std::byte* buffer, std::byte* beside,
            bool scales_by_nccl = false) const;
  void unpack(const Moves& moves, std::byte* buffer, std::byte* beside) const;
  /// @}

 private:
  const ReductionPlan plan_;
  const std::size_t width_;
};

/// Chunk by chunk: one that is a piece of a single tensor, and of which NCCL does all, is reduced
/// where it is; the rest is packed. A rank that adds nothing, or keeps nothing, packs all the same,
/// by itself: NCCL sees the same counts.
class Allreduce final : public ReductionWork {
 public:
  Allreduce(Links& links, const AllreduceCall& call);

 private:
  void issue() override;
  void reduce_by_nccl();
  void combine_shares();
  void pack_chunk(bool scales_by_nccl) const;
  void unpack_chunk() const;

  const OwnedCall<AllreduceCall> owned_;
  const AllreduceCall& call_ = owned_.call;
  device::ChunkLayout layout_;
  Shares shares_;
};

/// A chunk holds a piece of every rank's part, the same number of elements of each: parts that are
/// shorter leave some unused.
class Reducescatter final : public ReductionWork {
 public:
  Reducescatter(Links& links, const ReducescatterCall& call);

 private:
  void issue() override;
  bool is_single() const;
  void pack_chunk(bool scales_by_nccl) const;
  void unpack_chunk() const;
  /// Elements of a part in this chunk.
  std::size_t piece_of(std::size_t rank) const;

  const std::vector<std::size_t> counts_;
  const ReducescatterCall call_;    ///< but for its counts
  const std::size_t longest_;       ///< part
  std::vector<std::size_t> begin_;  ///< of each part
  std::size_t done_ = 0;            ///< of each part
  std::size_t share_ = 0;           ///< of this chunk, each
  Shares shares_;
};

}  // namespace ronde::nccl
