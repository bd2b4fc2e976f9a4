// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backends/shm/slots/chunks.h"
#include "backends/shm/slots/slot_operation.h"
#include "ronde/division.h"

namespace ronde::shm {

/// A broadcast: the root stages, and the others copy out of its slots.
class Broadcast final : public SlotOperation {
 public:
  Broadcast(std::shared_ptr<SlotBufferContext> context, const BroadcastCall& call);

 private:
  bool all_staged() const override { return !is_root_ || walk_.at_end(); }
  bool all_consumed() const override { return is_root_ || walk_.at_end(); }
  void stage(std::uint64_t round) override;
  bool may_consume(std::uint64_t round) override {
    return buffer().staged_by(root_, absolute(round));
  }
  void consume(std::uint64_t round) override;

  const std::size_t element_bytes_;
  const std::size_t root_;
  const bool is_root_;
  StoreChoice::Use stores_;
  ChunkWalk walk_;
};

/// An operation in which every rank has a part of a buffer for each other rank. A round moves the
/// same number of bytes of every part, so the largest part determines the number of rounds.
class PartwiseOperation : public SlotOperation {
 protected:
  /// `chunk_bytes`: bytes of a part per round. `largest`: bytes of the largest part of any rank.
  PartwiseOperation(std::shared_ptr<SlotBufferContext> context, std::size_t chunk_bytes,
                    std::size_t largest);

  /// Fills this rank's slot; `done` bytes of every part were staged before. Returns the pieces to
  /// which this rank adds nothing.
  virtual AbsentPieces stage_parts(std::uint64_t round, std::size_t done) = 0;
  virtual void consume_parts(std::uint64_t round, std::size_t done) = 0;

  std::size_t chunk_bytes() const noexcept { return chunk_bytes_; }
  /// Offset of the data for `to` in a slot of `from`, if the slot has different data for each rank.
  std::size_t place(std::size_t from, std::size_t to) const noexcept {
    return (to < from ? to : to - 1) * chunk_bytes_;
  }
  /// The chunk_bytes() of operations that use place().
  static std::size_t shared_chunk_bytes(const SlotBufferShape& shape);

 private:
  bool all_staged() const final { return staged_bytes_ >= largest_; }
  bool all_consumed() const final { return consumed_bytes_ >= largest_; }
  bool may_consume(std::uint64_t round) final { return buffer().staged_by_all(absolute(round)); }
  void stage(std::uint64_t round) final;
  void consume(std::uint64_t round) final;

  const std::size_t chunk_bytes_;
  const std::size_t largest_;
  std::size_t staged_bytes_ = 0, consumed_bytes_ = 0;  ///< of every part that is long enough
};

class Allgather final : public PartwiseOperation {
 public:
  Allgather(std::shared_ptr<SlotBufferContext> context, const AllgatherCall& call);

 private:
  AbsentPieces stage_parts(std::uint64_t round, std::size_t done) override;
  void consume_parts(std::uint64_t round, std::size_t done) override;

  const void* const input_;
  void* const output_;
  const Parts parts_;  ///< the output's, in bytes
  const StoreChoice::Use stores_;
};

class Alltoall final : public PartwiseOperation {
 public:
  Alltoall(std::shared_ptr<SlotBufferContext> context, const AlltoallCall& call);

 private:
  AbsentPieces stage_parts(std::uint64_t round, std::size_t done) override;
  void consume_parts(std::uint64_t round, std::size_t done) override;

  const void* const input_;
  void* const output_;
  const Parts sent_, received_;  ///< in bytes
  const StoreChoice::Use stores_;
};

class Reducescatter final : public PartwiseOperation {
 public:
  Reducescatter(std::shared_ptr<SlotBufferContext> context, const ReducescatterCall& call);

 private:
  AbsentPieces stage_parts(std::uint64_t round, std::size_t done) override;
  void consume_parts(std::uint64_t round, std::size_t done) override;

  const void* const input_;
  void* const output_;
  const std::size_t element_bytes_;
  const Reduction reduction_;
  const Parts parts_;  ///< the input's, in bytes
  const StoreChoice::Use stores_;
  std::vector<const void*> inputs_;  ///< by rank
};

}  // namespace ronde::shm
