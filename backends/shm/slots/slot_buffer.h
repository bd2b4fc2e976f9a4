// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace ronde::shm {

/// Alignment of a slot buffer, and of each rank's part in it: a page.
inline constexpr std::size_t kSlotBufferAlignment = 4096;

/// The number of ranks that share a slot buffer, and the slots of each.
struct SlotBufferShape {
  std::size_t ranks = 1;
  std::size_t slots = 4;
  std::size_t slot_bytes = std::size_t{128} << 10;

  std::size_t bytes_of_rank() const noexcept;
  std::size_t bytes() const noexcept { return ranks * bytes_of_rank(); }
};

/// Returns `wanted` bytes a slot, or as many as `slots` of them can have in `most_bytes`, in KiB
/// that are multiples of 4.
std::size_t slot_bytes_within(std::size_t wanted, std::size_t most_bytes,
                              std::size_t slots) noexcept;

/// Most pieces of segments in a round. A bit for each piece says whether the rank contributes.
inline constexpr std::size_t kMostPieces = 512;

/// The pieces of a round to which the rank that staged it adds nothing.
using AbsentPieces = std::bitset<kMostPieces>;

/// Memory through which the ranks of a host stream data, in rounds.
///
/// Note [Rounds of the slot buffer]
/// A rank writes its part of round k into its own slot k modulo `slots` and then counts it as
/// staged. The others read the slot once they have staged the round themselves, and count the round
/// as consumed when they will not read it again. Only then is the slot written again, for round
/// k + slots. An operation in two shots has a step in between: each rank reduces its slice of all
/// slots, writes the result into one of them and counts the round as reduced; consuming then means
/// copying results. A counter belongs to the rank that counts, only grows, and continues from
/// operation to operation. So nothing is ever reset, and no rank has to wait at the end of an
/// operation: it may stage the next one while others still read the last. Operations that overlap
/// reserve their rounds when they begin, and do each step of a round after that step of the round
/// before, whichever operation it belongs to. A store to a slot is ordered before the release store
/// of its counter; a reader's acquire load of the counter is ordered before its loads of the slot.
/// A rank that dies stops counting: the others wait until the control plane reports the death.
///
/// Thread-safety: within a rank as Backend; between ranks the rounds order all accesses.
class SlotBuffer {
 public:
  /// `memory`: shared by the ranks, aligned to a page, zeroed, shape.bytes() long; must outlive
  /// this. Touches this rank's part. No rank may call anything else before every rank has
  /// constructed its own. `notify_peers`: wakes the peers that sleep.
  SlotBuffer(std::span<std::byte> memory, const SlotBufferShape& shape, std::size_t rank,
             std::function<void()> notify_peers);

  const SlotBufferShape& shape() const noexcept { return shape_; }
  std::size_t ranks() const noexcept { return shape_.ranks; }
  std::size_t rank() const noexcept { return rank_; }

  /// The first round of the next operation.
  std::uint64_t next_round() const noexcept { return next_round_; }
  /// Lets the next operation begin at round `end`, before the earlier rounds are over.
  void reserve(std::uint64_t end) noexcept { next_round_ = end; }
  /// Ends the operation: all rounds before `end` are over for this rank.
  void finish(std::uint64_t end);

  /// Whether every rank has consumed the previous contents of this round's slots.
  bool may_stage(std::uint64_t round) {
    return round < shape_.slots || reached(kConsumed, round - shape_.slots);
  }
  bool staged_by_all(std::uint64_t round) { return reached(kStaged, round); }
  bool staged_by(std::size_t rank, std::uint64_t round);
  // The next round that this rank will count as staged, reduced or consumed.
  std::uint64_t next_staged() const noexcept { return own_[kStaged]; }
  std::uint64_t next_reduced() const noexcept { return own_[kReduced]; }
  std::uint64_t next_consumed() const noexcept { return own_[kConsumed]; }
  bool reduced_by_all(std::uint64_t round) { return reached(kReduced, round); }

  /// `absent`: the pieces to which this rank adds nothing.
  void publish_staged(std::uint64_t round, const AbsentPieces& absent = {});
  void publish_reduced(std::uint64_t round) { publish(kReduced, round + 1); }
  void publish_consumed(std::uint64_t round) { publish(kConsumed, round + 1); }

  /// Wakes the peers that sleep, if anything was published since the last call. Must be called
  /// before this rank waits; calling it after each publish would be slow, as its fence waits for
  /// all stores.
  void notify_peers();

  std::byte* slot(std::size_t rank, std::uint64_t round) const noexcept;
  /// The pieces of the round to which `rank` adds nothing; null if there are none.
  const AbsentPieces* absent(std::size_t rank, std::uint64_t round) const noexcept;

  /// Address of `rank`'s operand, `offset` bytes into its slot and within the given piece; null if
  /// `rank` adds nothing to that piece.
  const std::byte* operand(std::size_t rank, std::uint64_t round, std::size_t piece,
                           std::size_t offset) const noexcept;

  /// The word in which local rank 0 publishes its choices; ordered with no other access.
  std::atomic<std::uint64_t>& leaders_word() const noexcept;

 private:
  enum Step : std::size_t { kStaged, kReduced, kConsumed, kSteps };

  struct Header;

  Header& header(std::size_t rank) const noexcept;
  /// Whether all others have counted beyond `round`.
  bool reached(Step step, std::uint64_t round);
  void publish(Step step, std::uint64_t count);

  const std::span<std::byte> memory_;
  const SlotBufferShape shape_;
  const std::size_t rank_;
  const std::function<void()> notify_peers_;
  std::uint64_t next_round_ = 0;
  bool has_news_ = false;  ///< something was published since the last notify_peers()
  std::array<std::uint64_t, kSteps> own_ = {};
  /// The others' counters as last read, by rank; each read costs a cache miss.
  std::array<std::vector<std::uint64_t>, kSteps> seen_;
};

}  // namespace ronde::shm
