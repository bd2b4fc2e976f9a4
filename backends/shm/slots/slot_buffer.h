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

/// Alignment of a slot buffer's memory, and of each rank's part of it: a page.
inline constexpr std::size_t kSlotBufferAlignment = 4096;

/// How many ranks share a slot buffer, and what each of them has in it.
struct SlotBufferShape {
  std::size_t ranks = 1;
  std::size_t slots = 4;
  std::size_t slot_bytes = std::size_t{128} << 10;

  std::size_t bytes_of_rank() const noexcept;
  std::size_t bytes() const noexcept { return ranks * bytes_of_rank(); }
};

/// Most pieces of segments in a round. Each has a bit that says whether its rank contributes.
inline constexpr std::size_t kMostPieces = 512;

/// Which pieces of a round the rank that staged it adds nothing to.
using AbsentPieces = std::bitset<kMostPieces>;

/// Memory through which the ranks of a host stream data, in rounds.
///
/// Note [Rounds of the slot buffer]
/// A rank writes its part of round k into its own slot k modulo `slots` and then counts it as
/// staged. Once the others have staged it they read the slot, and count the round as consumed when
/// they will not read it again. Only then is the slot written again, for round k + slots. In an
/// operation in two shots there is a step between: each rank reduces its slice of all slots, writes
/// the result into one of them and counts the round as reduced; consuming then means copying
/// results. Counters belong to the rank that counts, only ever grow, and go on from operation to
/// operation, so nothing is ever reset and no rank has to wait at the end of one: it may stage the
/// next while others still read the last. Operations that overlap reserve their rounds when they
/// begin, and take each step of a round after that of the round before, whosever it is. A store to
/// a slot is ordered before the release store of its counter; a reader's acquire load of the
/// counter is ordered before its loads of the slot. A rank that dies stops counting: the others
/// wait until the control plane reports the death.
///
/// Thread-safety: of one rank, as Backend; between ranks, by the rounds.
class SlotBuffer {
 public:
  /// `memory` is common to the ranks, aligned to a page, zeroed, shape.bytes() long, and outlives
  /// this. Touches this rank's part. Nothing else may be called before every rank has made its own.
  /// `notify_peers`: wakes the peers that sleep.
  SlotBuffer(std::span<std::byte> memory, const SlotBufferShape& shape, std::size_t rank,
             std::function<void()> notify_peers);

  const SlotBufferShape& shape() const noexcept { return shape_; }
  std::size_t ranks() const noexcept { return shape_.ranks; }
  std::size_t rank() const noexcept { return rank_; }

  /// The first round of the next operation.
  std::uint64_t next_round() const noexcept { return next_round_; }
  /// The next operation begins at `end`, before the rounds up to there are over.
  void reserve(std::uint64_t end) noexcept { next_round_ = end; }
  /// All rounds before `end` are over for this rank: the operation is finished.
  void finish(std::uint64_t end);

  /// Every rank has consumed what was in this round's slots before.
  bool may_stage(std::uint64_t round) {
    return round < shape_.slots || reached(kConsumed, round - shape_.slots);
  }
  bool staged_by_all(std::uint64_t round) { return reached(kStaged, round); }
  bool staged_by(std::size_t rank, std::uint64_t round);
  /// The next round that this rank is to count.
  /// @{
  std::uint64_t next_staged() const noexcept { return own_[kStaged]; }
  std::uint64_t next_reduced() const noexcept { return own_[kReduced]; }
  std::uint64_t next_consumed() const noexcept { return own_[kConsumed]; }
  /// @}
  bool reduced_by_all(std::uint64_t round) { return reached(kReduced, round); }

  /// `absent`: pieces that this rank adds nothing to.
  void publish_staged(std::uint64_t round, const AbsentPieces& absent = {});
  void publish_reduced(std::uint64_t round) { publish(kReduced, round + 1); }
  void publish_consumed(std::uint64_t round) { publish(kConsumed, round + 1); }

  /// Wakes the peers that sleep, if anything was published since the last call. To be called before
  /// this rank waits; not after each publish, as it waits until all stores before it are done.
  void notify_peers();

  std::byte* slot(std::size_t rank, std::uint64_t round) const noexcept;
  /// Pieces of the round that `rank` contributes nothing to; null if there is none.
  const AbsentPieces* absent(std::size_t rank, std::uint64_t round) const noexcept;

  /// Address of `rank`'s operand, `offset` bytes into its slot and within the given piece; null if
  /// it contributes nothing to that piece.
  const std::byte* operand(std::size_t rank, std::uint64_t round, std::size_t piece,
                           std::size_t offset) const noexcept;

  /// A word in which local rank 0 publishes its choices; ordered with nothing.
  std::atomic<std::uint64_t>& leaders_word() const noexcept;

 private:
  enum Step : std::size_t { kStaged, kReduced, kConsumed, kSteps };

  struct Header;

  Header& header(std::size_t rank) const noexcept;
  /// All others have counted beyond `round`.
  bool reached(Step step, std::uint64_t round);
  void publish(Step step, std::uint64_t count);

  const std::span<std::byte> memory_;
  const SlotBufferShape shape_;
  const std::size_t rank_;
  const std::function<void()> notify_peers_;
  std::uint64_t next_round_ = 0;
  bool has_news_ = false;  ///< for peers
  std::array<std::uint64_t, kSteps> own_ = {};
  /// The others' counters as read last, by rank: each read costs a cache miss.
  std::array<std::vector<std::uint64_t>, kSteps> seen_;
};

}  // namespace ronde::shm
