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

/// An allreduce in which every rank reduces one slice of each round for all, into its result slot,
/// and copies the others' slices: less to read and reduce for more than two ranks, for one more
/// wait a round.
class SlicedAllreduce final : public RingOperation {
 public:
  SlicedAllreduce(std::shared_ptr<RingContext> context, const AllreduceCall& call,
                  StoreChoice::Use stores);

 private:
  /// Elements [begin, end) of a round.
  struct Slice {
    std::size_t begin, end;
  };

  Slice slice_of(std::size_t rank, std::size_t round_elements) const;
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
};

}  // namespace ronde::shm
