// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/shm/operations/allreduce.h"
#include "core/src/algorithms/peer_messages.h"
#include "core/src/algorithms/shards.h"
#include "core/src/base/counter.h"
#include "ronde/algorithms.h"
#include "ronde/kernels.h"
#include "ronde/plugin/calls.h"
#include "ronde/stats.h"

namespace ronde::hierarchical {

/// Returns the shape of the slot buffer of this rank's host; slots have the same size on all hosts.
shm::SlotBufferShape slot_buffer_shape(const Topology& topology);

/// State that operations share; operations may outlive the backend.
class Hierarchy {
 public:
  /// `buffer`: that of this host; slots have the same size on every host. `owners`: those of this
  /// rank's shard, in the order of hosts; null without a shard. `exact`: reduces in that order.
  Hierarchy(std::shared_ptr<shm::SlotBufferContext> buffer, Shards shards,
            std::shared_ptr<const FabricChannel> owners, AlgorithmTable algorithms, bool exact);

  /// Adds the number of rounds of each algorithm between hosts.
  void add_counters(StatsGroup& group) const;

  const std::shared_ptr<shm::SlotBufferContext> buffer;
  const Shards shards;

 private:
  friend class HierarchicalAllreduce;

  const std::shared_ptr<const FabricChannel> owners_;
  const AlgorithmTable algorithms_;
  const bool exact_;
  std::array<Counter, kAlgorithmCount> used_;
  std::vector<std::vector<std::byte>> partials_;  ///< this host's sums of the own shard, by slot
  std::vector<std::shared_ptr<void>>
      registered_;  ///< memory that the own shard is sent from, or null
};

/// The scaling of a host's sum, and of the sum over all hosts.
struct FinalSteps {
  Scaling within_host;
  Scaling over_hosts;
};

/// An allreduce over several hosts.
///
/// Note [A round over several hosts]
/// 1. Every rank stages its input in its slot of the slot buffer, as in TwoShotAllreduce, except
/// the
///    shard that it owns.
/// 2. The owner of a shard reduces it over the ranks of its host into a buffer of its own, and
/// scales
///    the inputs.
/// 3. The owners of the same shard on all hosts reduce it by one of the algorithms between hosts.
/// The
///    results are scaled, rounded, and stored in each owner's slot, in the place of its own shard.
/// 4. When a shard is complete in its owner's slot, the ranks of the host copy it to their outputs.
/// All owners have the same bits, and so have all ranks. A shard crosses to another host about once
/// in either direction, whatever the number of ranks, and the shards of a host cross at the same
/// time. As many rounds as there are slots are in flight: while one is on the wire, the next is
/// reduced. A half type is sent between hosts as f32 until the sum is complete, so that it is
/// rounded once. If it is a wire_dtype, which saves bytes, it is sent as itself: then the sum of
/// each host is also rounded to it, and divided before if it is part of an average. Messages are
/// sent from and received in memory of the backend only, never a user's.
///
/// Overlapping allreduces share one sequence of rounds: each does a step only after the previous
/// allreduce has done that step for all of its rounds, except for steps 2 and 3 of the owners,
/// whose order is free. So none ever waits for a later one, and later ones fill the slots that it
/// leaves.
///
/// Thread-safety: as Operation.
class HierarchicalAllreduce final : public shm::SlotAllreduce {
 public:
  HierarchicalAllreduce(std::shared_ptr<Hierarchy> hierarchy, const AllreduceCall& call);

  std::uint64_t progress() const override { return SlotAllreduce::progress() + exchanged_; }

 private:
  /// The exchange of a round between the owners of a shard.
  struct Exchange {
    explicit Exchange(const std::shared_ptr<Hierarchy>& hierarchy, std::size_t slot)
        : messages(hierarchy->owners_, static_cast<std::uint32_t>(slot % Fabric::kStreams),
                   hierarchy) {}

    PeerMessages messages;
    Steps steps;
  };

  bool may_stage(std::uint64_t round) override;
  void stage(std::uint64_t round) override;
  bool reduce(std::uint64_t round) override;
  bool may_consume(std::uint64_t round) override;
  void consume(std::uint64_t round) override;

  // Steps of the owner of a shard.
  void reduce_piece(std::uint64_t round, const shm::Piece& piece, const shm::Slice& range,
                    std::byte* output);
  bool widens() const noexcept { return partial_dtype_ != dtype_; }
  void widen_inputs(std::size_t count);
  Algorithm choose(std::size_t bytes) const;
  Steps exchange(std::uint64_t round, PeerMessages& messages);
  Steps scatter_and_gather(std::uint64_t round, PeerMessages& messages, Algorithm algorithm);
  void finish(std::byte* results, const std::byte* sums, std::size_t count) const;
  void advance_exchanges();

  shm::Slice shard(std::size_t owner, std::uint64_t round) const;
  std::size_t slot_of(std::uint64_t round) const noexcept;
  std::byte* own_results(std::uint64_t round);
  std::byte* partial(std::uint64_t round) noexcept;
  bool owns_shard() const noexcept { return hierarchy_->shards.own.has_value(); }

  const std::shared_ptr<Hierarchy> hierarchy_;
  const DataType dtype_;          ///< in the slot buffer, and of results between hosts
  const DataType partial_dtype_;  ///< of sums between hosts: f32 for half types, if not compressed
  const std::size_t element_bytes_;
  const std::size_t partial_bytes_;  ///< of an element
  const double prescale_;
  const Scaling final_;
  const FinalSteps final_steps_;
  const Reduction within_host_, over_hosts_;  ///< in partial_dtype_
  const Reduction between_hosts_;             ///< as over_hosts_, without the final scaling
  shm::ChunkWalk reducing_;
  std::vector<std::size_t> elements_;                 ///< of the round in each slot
  std::vector<std::unique_ptr<Exchange>> exchanges_;  ///< of the round in each slot; null: ended
  std::uint64_t complete_ = 0;                        ///< rounds whose own shard is finished
  std::uint64_t exchanged_ = 0;                       ///< grows as exchanges advance
  std::vector<float> widened_;                        ///< a block of every local rank
};

}  // namespace ronde::hierarchical
