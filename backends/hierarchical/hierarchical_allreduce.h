// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/hierarchical/final_steps.h"
#include "backends/hierarchical/shards.h"
#include "backends/hierarchical/wire.h"
#include "backends/shm/operations/allreduce.h"
#include "ronde/plugin/calls.h"

namespace ronde::hierarchical {

/// Written by one thread at a time, read by any.
struct WireCounters {
  std::atomic<std::uint64_t> messages = 0;
  std::atomic<std::uint64_t> sent_bytes = 0;
};

/// State that operations share. They may outlive the backend.
class Hierarchy {
 public:
  /// `buffer`: of the ranks of this host; its slots are as large on every host. `wire`: null
  /// without a shard.
  Hierarchy(std::shared_ptr<shm::SlotBufferContext> buffer, Shards shards,
            std::unique_ptr<Wire> wire);

  /// Batches of messages that the wire has to have.
  static std::size_t batches(std::size_t slots) { return slots * kBatchesOfSlot; }

  const std::shared_ptr<shm::SlotBufferContext> buffer;
  const Shards shards;
  const std::unique_ptr<Wire> wire;
  WireCounters counters;

 private:
  friend class HierarchicalAllreduce;

  /// The messages of a round.
  enum Batch : std::size_t { kPartialsReceived, kResultsReceived, kSent, kBatchesOfSlot };

  /// Buffers of a slot of the slot buffer: this host's sums of the own shard, and the other hosts'
  /// sums of the own part.
  struct Buffers {
    std::vector<std::byte> partial;
    std::vector<std::byte> incoming;
  };

  std::size_t incoming_bytes_ = 0;  ///< of one host
  std::vector<Buffers> buffers_;    ///< by slot
};

/// An allreduce over several hosts.
///
/// Note [A round over several hosts]
/// 1. Every rank stages its input in its slot of the slot buffer, as TwoShotAllreduce does, but for
/// the
///    shard that it owns.
/// 2. The owner of a shard reduces it over the ranks of its host, scaling the inputs, into a buffer
///    of its own, and sends to the owners on other hosts the parts that they reduce.
/// 3. Once the other hosts' sums of its own part have come, it reduces them in the order of hosts,
///    scales and rounds the result into its slot, and sends it to the other owners. Theirs arrive
///    in the slot, where its shard was left free.
/// 4. When a shard is complete in its owner's slot, the ranks of the host copy it to their outputs.
/// Each element is finished by one rank and copied from there, so that all have the same bits. A
/// shard crosses to another host once in either direction, whatever the number of ranks, and the
/// shards of a host do so at the same time. Rounds follow each other as far as there are slots:
/// while one is on the wire the next is reduced. Between hosts a half type is sent as f32 until it
/// is complete, so that it is rounded once; but as itself where it is a wire_dtype, as that is to
/// save bytes: then the sum of each host is rounded to it too, divided before if that is for an
/// average.
/// Messages are sent from and received in memory of the backend only, never a user's.
///
/// Thread-safety: as Operation.
class HierarchicalAllreduce final : public shm::SlotAllreduce {
 public:
  HierarchicalAllreduce(std::shared_ptr<Hierarchy> hierarchy, const AllreduceCall& call);
  /// Messages that are still in flight keep their memory for ever.
  ~HierarchicalAllreduce() override;

 private:
  void stage(std::uint64_t round) override;
  bool reduce(std::uint64_t round) override;
  bool may_consume(std::uint64_t round) override;
  void consume(std::uint64_t round) override;

  // Steps of the owner of a shard.
  void expect_messages(std::uint64_t round);
  void reduce_piece(std::uint64_t round, const shm::Piece& piece, const shm::Slice& range,
                    std::byte* output);
  bool widens() const noexcept { return partial_dtype_ != dtype_; }
  void widen_inputs(std::size_t count);
  void send_partials(std::uint64_t round);
  void advance_wire();
  void combine_hosts(std::uint64_t round);
  void send_results(std::uint64_t round);
  void send(std::uint64_t round, std::size_t host, Wire::Kind kind, const std::byte* from,
            std::size_t bytes);

  shm::Slice shard(std::size_t index, std::uint64_t round) const;
  shm::Slice part(std::size_t host, std::uint64_t round) const;
  std::size_t slot_of(std::uint64_t round) const noexcept;
  std::size_t batch(std::uint64_t round, Hierarchy::Batch kind) const noexcept;
  std::byte* own_slot(std::uint64_t round) noexcept;
  std::byte* incoming(std::uint64_t round, std::size_t host) noexcept;
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
  shm::ChunkWalk reducing_;
  std::vector<std::size_t> elements_;     ///< of the round in each slot
  std::uint64_t combined_ = 0;            ///< rounds
  std::uint64_t complete_ = 0;            ///< rounds that the own shard is finished of
  std::vector<const void*> host_inputs_;  ///< by host
  std::vector<float> widened_;            ///< a block of every local rank
};

}  // namespace ronde::hierarchical
