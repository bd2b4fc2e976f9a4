// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backends/shm/operations/element_format.h"
#include "backends/shm/slots/chunks.h"
#include "backends/shm/slots/slot_operation.h"
#include "backends/shm/slots/store_choice.h"

namespace ronde::shm {

/// Common part of the allreduces through the slot buffer. Where the call has a wire type, elements
/// are converted while they are staged, and back while results are written: in one pass over
/// memory.
class SlotAllreduce : public SlotOperation {
 protected:
  SlotAllreduce(std::shared_ptr<SlotBufferContext> context, const AllreduceCall& call,
                StoreChoice::Use stores);

  /// Stages what lies outside `own`, a slice of the round that nobody but this rank would read.
  void stage_outside(std::uint64_t round, const Slice& own);
  /// Sets inputs_ to the operands of `count` elements of the piece (at most block_elements() where
  /// they are converted), behind the first `skipped`; null for ranks that contribute nothing.
  void find_inputs(std::uint64_t round, const Piece& piece, std::size_t skipped, std::size_t count);
  /// Reduces inputs_ to the user's memory. Returns where the results can be read, in the type in
  /// which they were reduced: in this core's cache.
  const std::byte* reduce_inputs(std::byte* output, std::size_t count, bool will_read);

  /// Copies what lies in `slice` of the piece to the user's memory, from a slot with the results.
  void copy_results(const Piece& piece, const Slice& slice, const std::byte* slot);

  /// The most elements at a time that pass through the first-level cache.
  std::size_t block_elements() const noexcept;

  const ElementFormat format_;
  const Reduction reduction_;
  StoreChoice::Use stores_;
  ChunkWalk staging_, consuming_;
  std::vector<const void*> inputs_;  ///< by rank

 private:
  bool all_staged() const final { return staging_.at_end(); }
  bool all_consumed() const final { return consuming_.at_end(); }
  void finished() final { stores_.end(); }

  std::byte* block();

  std::vector<std::byte> block_;  ///< what is converted, or needed in two places; empty until then
};

/// An allreduce in which every rank reduces every element, from its own input and the others'
/// slots straight to its output: one wait for the peers a round.
class OneShotAllreduce final : public SlotAllreduce {
 public:
  OneShotAllreduce(std::shared_ptr<SlotBufferContext> context, const AllreduceCall& call,
                   StoreChoice::Use stores)
      : SlotAllreduce(std::move(context), call, std::move(stores)) {}

 private:
  void stage(std::uint64_t round) override { stage_outside(round, {0, 0}); }
  bool may_consume(std::uint64_t round) override { return buffer().staged_by_all(absolute(round)); }
  void consume(std::uint64_t round) override;
};

/// An allreduce in which every rank reduces one slice of each round for all and copies the others'
/// slices: less to read and reduce, for one more wait a round.
///
/// Note [Results in place]
/// The result of a slice is written into the slot of one of the ranks that staged it, over the
/// operand that was just read from there: these lines are in this core's cache already, while those
/// of a slot for results would first have to be taken from their last readers. So of two ranks a
/// line changes hands three times where it would four times, flat or with result slots.
class TwoShotAllreduce final : public SlotAllreduce {
 public:
  TwoShotAllreduce(std::shared_ptr<SlotBufferContext> context, const AllreduceCall& call,
                   StoreChoice::Use stores)
      : SlotAllreduce(std::move(context), call, std::move(stores)), reducing_(staging_) {}

 private:
  Slice slice_of(std::size_t rank, std::size_t round_elements) const;
  /// The rank whose slot holds the results of `rank`'s slice.
  std::size_t holder_of(std::size_t rank) const { return (rank + 1) % inputs_.size(); }
  void reduce_part(std::uint64_t round, const Piece& piece, std::size_t begin, std::size_t end);
  void stage(std::uint64_t round) override {
    stage_outside(round, slice_of(buffer().rank(), staging_.next_count()));
  }
  bool reduce(std::uint64_t round) override;
  bool may_consume(std::uint64_t round) override;
  void consume(std::uint64_t round) override;

  ChunkWalk reducing_;
};

}  // namespace ronde::shm
