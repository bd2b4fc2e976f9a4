// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backends/shm/slots/chunks.h"
#include "backends/shm/slots/slot_operation.h"
#include "backends/shm/slots/store_choice.h"

namespace ronde::shm {

/// The element types of an allreduce: the type in the user's memory, and the wire type, in which
/// elements are staged, reduced and sent. They differ if the call has a wire_dtype.
class ElementFormat {
 public:
  explicit ElementFormat(const AllreduceCall& call)
      : kernels_(best_kernels()),
        user_(call.dtype),
        wire_(call.effective_wire_dtype()),
        prescale_(call.prescale) {}

  bool converts() const noexcept { return user_ != wire_; }
  DataType wire() const noexcept { return wire_; }
  std::size_t user_bytes() const noexcept { return size_of(user_); }
  std::size_t wire_bytes() const noexcept { return size_of(wire_); }

  /// Factor of a reduction's inputs; 1 if the conversion has scaled them.
  double prescale() const noexcept { return converts() ? 1.0 : prescale_; }

  /// Copies `count` elements from the user's memory; scales them if it converts them.
  void pack(std::byte* to, const std::byte* from, std::size_t count, Store store) const {
    if (converts()) {
      kernels_.narrow(to, from, count, conversion({prescale_, 1.0}), store);
    } else {
      kernels_.copy(to, from, count * size_of(wire_), store);
    }
  }

  /// Copies `count` elements back to the user's memory.
  void unpack(std::byte* to, const std::byte* from, std::size_t count, Store store) const {
    if (converts()) {
      kernels_.widen(to, from, count, conversion({}), store);
    } else {
      kernels_.copy(to, from, count * size_of(wire_), store);
    }
  }

 private:
  Conversion conversion(const Scaling& scaling) const {
    return {.half = wire_, .full = user_, .scaling = scaling};
  }

  const Kernels& kernels_;
  const DataType user_;
  const DataType wire_;
  const double prescale_;
};

/// The common part of the allreduces through the slot buffer. If the call has a wire type, elements
/// are converted while they are staged, and back while results are written, without another pass
/// over memory.
class SlotAllreduce : public SlotOperation {
 protected:
  SlotAllreduce(std::shared_ptr<SlotBufferContext> context, const AllreduceCall& call,
                StoreChoice::Use stores);

  /// Stages all but `own`, a slice of the round that only this rank reads.
  void stage_outside(std::uint64_t round, const Slice& own);
  /// Sets inputs_ to the operands of `count` elements of the piece, after the first `skipped`; null
  /// for ranks that contribute nothing. `count`: at most block_elements() if elements are
  /// converted.
  void find_inputs(std::uint64_t round, const Piece& piece, std::size_t skipped, std::size_t count);
  /// Reduces inputs_ to the user's memory, unless that is null. Returns an address in this core's
  /// cache at which the results can be read, in the wire type.
  const std::byte* reduce_inputs(std::byte* output, std::size_t count, bool will_read);

  /// Copies the part of the piece that lies in `slice` from a slot with results to the user's
  /// memory.
  void copy_results(const Piece& piece, const Slice& slice, const std::byte* slot);

  /// The number of elements that pass through the first-level cache at a time.
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

  std::vector<std::byte> block_;  ///< for elements that are converted, or needed twice; else empty
};

/// An allreduce in which every rank reduces every element, from its own input and the others' slots
/// straight to its output. A rank waits for its peers once a round.
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

/// An allreduce in which every rank reduces one slice of each round for all, and copies the others'
/// slices. A rank reads and reduces less than in one shot, but waits once more a round.
///
/// Note [Results in place]
/// The result of a slice is written into the slot of one of the ranks that staged it, over the
/// operand that was just read from there. Those lines are already in this core's cache, while the
/// lines of a separate result slot would be in the caches of its last readers. With two ranks, a
/// line moves between caches three times instead of four times, as in one shot or with result
/// slots.
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
