// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "backends/shm/slots/slot_buffer.h"
#include "backends/shm/slots/store_choice.h"
#include "ronde/kernels.h"
#include "ronde/plugin/backend.h"

namespace ronde::shm {

/// Statistics of the backend. One thread at a time writes them, any may read them.
struct SlotCounters {
  std::atomic<std::uint64_t> operations = 0;
  std::atomic<std::uint64_t> rounds = 0;
  std::atomic<std::uint64_t> staged_bytes = 0;
  std::atomic<std::uint64_t> one_shot_operations = 0;
  std::atomic<std::uint64_t> two_shot_operations = 0;
};

/// State that the operations of a rank share; operations may outlive the backend.
struct SlotBufferContext {
  SlotBufferContext(std::span<std::byte> memory, std::shared_ptr<void> owner,
                    const SlotBufferShape& shape, std::size_t rank,
                    std::function<void()> notify_peers, ShmOptions::Stores store_mode)
      : memory_owner(std::move(owner)),
        buffer(memory, shape, rank, std::move(notify_peers)),
        kernels(best_kernels()),
        stores(store_mode, rank == 0, buffer.leaders_word()) {}

  const std::shared_ptr<void> memory_owner;
  SlotBuffer buffer;
  const Kernels& kernels;
  StoreChoice stores;
  SlotCounters counters;
};

/// An operation in rounds through the slot buffer, which stages ahead of consuming as far as the
/// slot buffer allows. Derived classes define what is copied and reduced in a round; an operation
/// counts its rounds from 0.
class SlotOperation : public Operation {
 public:
  bool poll() final;
  std::uint64_t progress() const override { return staged_ + reduced_ + consumed_; }

 protected:
  explicit SlotOperation(std::shared_ptr<SlotBufferContext> context);

  /// Whether this rank has staged (consumed) the last round.
  virtual bool all_staged() const = 0;
  virtual bool all_consumed() const = 0;
  /// False if this rank has to wait for a peer before it can stage the round.
  virtual bool may_stage(std::uint64_t round) { return buffer().may_stage(absolute(round)); }
  /// Fills this rank's slot and publishes it as staged.
  virtual void stage(std::uint64_t round) = 0;
  /// False if this rank has to wait for a peer before it can consume the round.
  virtual bool may_consume(std::uint64_t round) = 0;
  virtual void consume(std::uint64_t round) = 0;
  /// Runs the step between staging and consuming, if the operation has one; false if it has to wait
  /// for a peer. This rank has staged the round.
  virtual bool reduce(std::uint64_t round) {
    static_cast<void>(round);
    return false;
  }
  /// Called once, when everything is consumed.
  virtual void finished() {}

  SlotBuffer& buffer() noexcept { return context_->buffer; }
  const Kernels& kernels() const noexcept { return context_->kernels; }
  /// The address at which to write `bytes` of this rank's slot, `offset` bytes into it; null if no
  /// rank would read them.
  std::byte* slot_to_fill(std::uint64_t round, std::size_t offset, std::size_t bytes);
  /// Copies into this rank's slot, `offset` bytes into it.
  void write_slot(std::uint64_t round, std::size_t offset, const void* input, std::size_t bytes,
                  Store store);
  /// Copies `bytes` out of another rank's slot.
  void read_slot(std::byte* output, const std::byte* slot, std::size_t bytes, Store store) const;
  std::uint64_t rounds_reduced() const noexcept { return reduced_; }
  /// The number of this operation's `round` among all rounds of the slot buffer.
  std::uint64_t absolute(std::uint64_t round) const noexcept { return first_round_ + round; }

 private:
  bool advance();
  bool step();
  bool try_stage();

  const std::shared_ptr<SlotBufferContext> context_;
  const std::uint64_t first_round_;
  std::uint64_t staged_ = 0, reduced_ = 0, consumed_ = 0;  ///< rounds
  std::uint64_t staged_bytes_ = 0;
  bool finished_ = false;
};

}  // namespace ronde::shm
