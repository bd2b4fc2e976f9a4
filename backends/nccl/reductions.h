// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backends/cuda/moves.h"
#include "backends/gpu/chunk_layout.h"
#include "backends/nccl/operation.h"
#include "backends/nccl/reduction_plan.h"

namespace ronde::nccl {

/// What the reductions have in common: chunks of a buffer that are packed, combined and unpacked.
class ReductionWork : public Work {
 protected:
  /// `call`: without its segments.
  ReductionWork(Links& links, const AllreduceCall& call, std::string doing)
      : Work(links, call.place, std::move(doing)),
        plan_(plan_reduction(call, size(), options().exact)) {}

  /// A chunk in the fusion buffer: a share of the elements for each rank. Where the ranks combine
  /// them, each gives every other one that one's share, and combines its own of all ranks in their
  /// order: Note [What NCCL reduces].
  struct Shares {
    std::byte* packed = nullptr;    ///< this rank's elements, share after share
    std::byte* received = nullptr;  ///< the ranks' elements of this rank's share, then the result
    std::size_t elements = 0;       ///< of a share, those behind the last one included
    std::size_t bytes = 0;          ///< of a share
  };
  Shares lay_out(std::byte* buffer, std::size_t elements) const noexcept;
  /// Elements of a share of these, where the ranks combine them: shares begin where wide accesses
  /// may. And the most that there is room for.
  /// @{
  std::size_t share_of(std::size_t elements) const noexcept;
  std::size_t most_of_share() const noexcept;
  /// @}
  /// Queues the exchange of the shares, and the combining of this rank's: the result is as far into
  /// the buffer on every rank, as windows of NCCL's ask for.
  void combine(const Shares& shares) const;

  const ReductionPlan& plan() const noexcept { return plan_; }
  /// Bytes of an element in the tensors, and on its way between the ranks.
  /// @{
  std::size_t tensor_width() const noexcept { return size_of(plan_.travel.from); }
  std::size_t width() const noexcept { return plan_.travel.width(); }
  /// @}

  /// Queues the way into the buffer, and the one out of it.
  /// @{
  void pack(const Moves& moves, bool is_scaled_by_nccl = false) const;
  void unpack(const Moves& moves) const;
  /// @}

 private:
  const ReductionPlan plan_;
};

/// Chunk by chunk: one that is a piece of a single tensor, and of which NCCL does all, is reduced
/// where it is; the rest is packed. A rank that adds nothing, or keeps nothing, packs all the same,
/// by itself: NCCL sees the same counts.
class Allreduce final : public ReductionWork {
 public:
  Allreduce(Links& links, const AllreduceCall& call);

 private:
  void issue() override;
  void reduce_by_nccl() const;
  void combine_chunk() const;
  Moves into(std::byte* buffer) const;
  Moves out_of(const std::byte* buffer) const;

  const std::vector<Segment> segments_;
  gpu::ChunkLayout layout_;
};

/// A chunk holds a piece of every rank's part, the same number of elements of each: parts that are
/// shorter leave some unused.
class Reducescatter final : public ReductionWork {
 public:
  Reducescatter(Links& links, const ReducescatterCall& call);

 private:
  void issue() override;
  /// `is_single`: all is in one chunk, where equal parts lie as in the tensor. Ranks without memory
  /// for it see it alike.
  void reduce_by_nccl(const cuda::RankParts& parts, bool is_single) const;
  void combine_chunk(const cuda::RankParts& parts) const;
  Moves into(const Shares& shares, const cuda::RankParts& parts) const;
  void keep_part(const Shares& shares, const cuda::RankParts& parts) const;

  const void* const input_;
  void* const output_;
  const std::vector<std::size_t> counts_;
};

}  // namespace ronde::nccl
