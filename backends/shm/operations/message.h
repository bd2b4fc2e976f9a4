// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backends/shm/slots/slot_buffer.h"
#include "ronde/kernels.h"
#include "ronde/plugin/backend.h"

namespace ronde::shm {

/// Memory through which pairs of ranks of a host exchange bytes. Each rank has an outbox of a few
/// slots.
///
/// Note [Slots of an outbox]
/// A sender writes the next part of a message into the next slot of its outbox and counts it as
/// sent to the receiver, with the number of the slot. The receiver copies the part out of the slot
/// and counts it as received. A slot is written again once its last receiver has received its part,
/// whichever rank is the next receiver. So a sender is done when it has written, and a receiver
/// waits for its sender only. There are counters for each pair of ranks. A counter belongs to the
/// rank that counts, only grows, and continues from message to message. Stores to a slot and to its
/// number are ordered before the release store of the sender's counter, whose acquire load is
/// ordered before the receiver's loads of the slot. These are ordered before the release store of
/// the receiver's counter, whose acquire load is ordered before the next stores to the slot. A rank
/// that dies stops counting, as in Note [Rounds of the slot buffer].
///
/// Thread-safety: within a rank as Backend; between ranks the counters order all accesses.
class Outboxes {
 public:
  /// Takes the arguments of SlotBuffer, but `memory` has bytes_for(shape) bytes. Touches no slot.
  Outboxes(std::span<std::byte> memory, const SlotBufferShape& shape, std::size_t rank,
           std::function<void()> notify_peers);

  /// Bytes of outboxes whose number and size of slots are those of a slot buffer.
  static std::size_t bytes_for(const SlotBufferShape& shape) noexcept;

  std::size_t slot_bytes() const noexcept { return shape_.slot_bytes; }

  /// The next slot of this rank's outbox; null until its last receiver has freed it.
  std::byte* next_slot();
  /// Sends the part in next_slot() to `receiver`.
  void publish(std::size_t receiver);

  /// The next part from `sender`; null until it has arrived.
  const std::byte* arrived(std::size_t sender) const;
  /// Frees the slot of that part.
  void release(std::size_t sender);

 private:
  struct Line;
  /// Identifies a part that was sent by its number among those for the receiver.
  struct Part {
    std::size_t receiver = 0;
    std::uint64_t number = 0;  ///< from 1 on; 0: none yet
  };

  static std::size_t header_bytes(const SlotBufferShape& shape) noexcept;
  static std::size_t bytes_of_rank(const SlotBufferShape& shape) noexcept;
  std::byte* part_of(std::size_t rank) const noexcept;
  /// Counters of the parts that `rank` has sent to `receiver`, and received from `sender`.
  Line& sent(std::size_t rank, std::size_t receiver) const noexcept;
  Line& received(std::size_t rank, std::size_t sender) const noexcept;

  const std::span<std::byte> memory_;
  const SlotBufferShape shape_;
  const std::size_t rank_;
  const std::function<void()> notify_peers_;
  std::vector<Part> last_;                      ///< by slot of the own outbox
  std::size_t next_ = 0;                        ///< slot
  std::vector<std::uint64_t> sent_, received_;  ///< parts, by the other rank
};

/// State that the messages of a rank share; messages may outlive the backend.
struct MessageContext {
  MessageContext(std::span<std::byte> memory, std::shared_ptr<void> owner,
                 const SlotBufferShape& shape, std::size_t rank, std::function<void()> notify_peers)
      : memory_owner(std::move(owner)),
        outboxes(memory, shape, rank, std::move(notify_peers)),
        kernels(best_kernels()) {}

  const std::shared_ptr<void> memory_owner;
  Outboxes outboxes;
  const Kernels& kernels;
  /// One thread at a time writes the counters, any may read them.
  std::atomic<std::uint64_t> messages = 0;
  std::atomic<std::uint64_t> bytes = 0;
};

/// A message in parts, each of which fills a slot. poll() moves parts until it would have to wait
/// for a slot.
class Message final : public Operation {
 public:
  /// Sends `bytes` from `from` to `peer`; where `from` is null, receives them into `to`.
  Message(std::shared_ptr<MessageContext> context, const void* from, void* to, std::size_t bytes,
          int peer);

  bool poll() override;
  std::uint64_t progress() const override { return parts_; }

 private:
  /// Moves the next `bytes`; false if it would have to wait.
  bool move(std::size_t bytes);

  const std::shared_ptr<MessageContext> context_;
  const void* const from_;  ///< null: this rank receives
  void* const to_;
  const std::size_t bytes_;
  const std::size_t peer_;
  std::size_t done_ = 0;
  std::uint64_t parts_ = 0;
};

}  // namespace ronde::shm
