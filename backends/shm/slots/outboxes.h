// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backends/shm/slots/slot_buffer.h"

namespace ronde::shm {

/// Memory through which single ranks of a host send bytes to each other: an outbox of a few slots
/// for each rank.
///
/// Note [Slots of an outbox]
/// A sender writes the next part of a message into the next slot of its outbox and counts it as
/// sent to the receiver, with the number of the slot. The receiver copies the part out of there and
/// counts it as taken. A slot is written again once its last receiver has taken it, whoever is the
/// next. So a sender is done when it has written, and a receiver never waits for anything but its
/// sender. There are counters for each pair of ranks; they belong to the rank that counts, only
/// ever grow, and go on from message to message. Stores to a slot and to its number are ordered
/// before the release store of the sender's counter, whose acquire load is ordered before the
/// receiver's loads; those before its own release store, whose acquire load is ordered before the
/// next stores to the slot. A rank that dies stops counting, as in Note [Rounds of the slot
/// buffer].
///
/// Thread-safety: of one rank, as Backend; between ranks, by the counters.
class Outboxes {
 public:
  /// `memory`, and when the others may be used: as SlotBuffer; bytes_for(shape) long. No slot is
  /// touched.
  Outboxes(std::span<std::byte> memory, const SlotBufferShape& shape, std::size_t rank,
           std::function<void()> notify_peers);

  /// Bytes of outboxes with the number and size of slots of a slot buffer.
  static std::size_t bytes_for(const SlotBufferShape& shape) noexcept;

  std::size_t slot_bytes() const noexcept { return shape_.slot_bytes; }

  /// The next slot of this rank's outbox; null until its last receiver has taken it.
  std::byte* next_slot();
  /// Gives the part that was written there to `receiver`.
  void publish(std::size_t receiver);

  /// The next part that `sender` has for this rank; null until it is there.
  const std::byte* arrived(std::size_t sender) const;
  /// Frees the slot of that part.
  void take(std::size_t sender);

 private:
  struct Line;
  /// A part that was sent, by its number among those for the receiver.
  struct Part {
    std::size_t receiver = 0;
    std::uint64_t number = 0;  ///< counts from 1; 0: none yet
  };

  static std::size_t header_bytes(const SlotBufferShape& shape) noexcept;
  static std::size_t bytes_of_rank(const SlotBufferShape& shape) noexcept;
  std::byte* part_of(std::size_t rank) const noexcept;
  /// Counters of the parts that `rank` has sent to `receiver`, and taken from `sender`.
  Line& sent(std::size_t rank, std::size_t receiver) const noexcept;
  Line& taken(std::size_t rank, std::size_t sender) const noexcept;

  const std::span<std::byte> memory_;
  const SlotBufferShape shape_;
  const std::size_t rank_;
  const std::function<void()> notify_peers_;
  std::vector<Part> last_;                   ///< by slot of the own outbox
  std::size_t next_ = 0;                     ///< slot
  std::vector<std::uint64_t> sent_, taken_;  ///< parts, by the other rank
};

}  // namespace ronde::shm
