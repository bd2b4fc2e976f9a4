// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "backends/shm/chunks.h"
#include "backends/shm/ring_operation.h"
#include "backends/shm/store_choice.h"

namespace ronde::shm {

/// An allreduce in which every rank reduces every element, from its own input and the others'
/// slots straight to its output: one wait for the peers a round.
class FlatAllreduce final : public RingOperation {
 public:
  FlatAllreduce(std::shared_ptr<RingContext> context, const AllreduceCall& call,
                StoreChoice::Use stores);

 private:
  bool all_staged() const override { return staging_.at_end(); }
  bool all_consumed() const override { return consuming_.at_end(); }
  void stage(std::uint64_t round) override;
  bool may_consume(std::uint64_t round) override { return ring().staged_by_all(absolute(round)); }
  void consume(std::uint64_t round) override;
  void finished() override { stores_.end(); }

  const std::size_t element_bytes_;
  const Reduction reduction_;
  StoreChoice::Use stores_;
  ChunkWalk staging_, consuming_;
  std::vector<const void*> inputs_;  ///< by rank
};

/// An allreduce in which every rank reduces one slice of each round for all and copies the others'
/// slices: less to read and reduce, for one more wait a round.
///
/// Note [Results in place]
/// The result of a slice is written into the slot of one of the ranks that staged it, over the
/// operand that was just read from there: these lines are in this core's cache already, while those
/// of a slot for results would first have to be taken from their last readers. So of two ranks a
/// line changes hands three times where it would four times, flat or with result slots.
class SlicedAllreduce final : public RingOperation {
 public:
  SlicedAllreduce(std::shared_ptr<RingContext> context, const AllreduceCall& call,
                  StoreChoice::Use stores);

 private:
  Slice slice_of(std::size_t rank, std::size_t round_elements) const;
  /// In whose slot the results of `rank`'s slice are.
  std::size_t holder_of(std::size_t rank) const { return (rank + 1) % inputs_.size(); }
  void reduce_part(std::uint64_t round, const Piece& piece, std::size_t begin, std::size_t end);
  bool all_staged() const override { return staging_.at_end(); }
  bool all_consumed() const override { return consuming_.at_end(); }
  void stage(std::uint64_t round) override;
  bool reduce(std::uint64_t round) override;
  bool may_consume(std::uint64_t round) override;
  void consume(std::uint64_t round) override;
  void finished() override { stores_.end(); }

  const std::size_t element_bytes_;
  const Reduction reduction_;
  StoreChoice::Use stores_;
  ChunkWalk staging_, reducing_, consuming_;
  std::vector<const void*> inputs_;  ///< by rank
  std::vector<std::byte> block_;     ///< results on their way to a slot and to the output
};

}  // namespace ronde::shm
