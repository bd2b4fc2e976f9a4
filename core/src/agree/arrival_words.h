// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ronde/error.h"
#include "ronde/plugin/board.h"

namespace ronde {

/// Lets ranks agree to start the buckets of a frozen schedule, by one word per bucket in shared
/// memory.
///
/// Note [Arrival words]
/// A word holds a generation (the decision that froze the schedule), a step, and how many ranks
/// have raised the bucket in it. The last rank's raise commits: from then on every rank will run
/// it. Until then it can be withdrawn, by closing the word: the same compare-and-swap decides
/// between a raise and a closing, so either all ranks run the bucket or none does. A rank that
/// leaves the plan closes every word, and then the generation; what was committed by then is final
/// and the same for all who read it. Words of an older generation count as untouched.
///
/// Note [Digests of arrivals]
/// A rank that raises a bucket first adds its digest (Request::digest) to what the others gave in
/// this step: the first one stores 23 bits of it with generation and step, a later one marks the
/// word if its own differ. Two words take turns, as a rank may raise a bucket for the next step
/// before another has looked at this one; it cannot raise it for the step after that.
///
/// Thread-safety: every member may be called from any thread.
class ArrivalWords {
 public:
  static constexpr int kMostRanks = 254;

  ArrivalWords(Board& board, int rank, int ranks)
      : board_(board), rank_(rank), ranks_(static_cast<std::uint64_t>(ranks)) {
    if (ranks > kMostRanks || board.words().size() < 2) {
      throw Error("arrival words count at most 254 ranks and need a board of two words");
    }
  }

  /// Returns how many buckets a schedule may have.
  std::size_t capacity() const noexcept { return board_.words().size() - 1; }

  enum class Raised { Waiting, Committed, Closed };

  /// Marks this rank as ready for `bucket` in `step` (counted from 1, without gaps). `digest`: that
  /// of the bucket's operations on this rank; 0: none.
  Raised raise(std::uint32_t generation, std::size_t bucket, std::uint32_t step,
               std::uint64_t digest = 0) {
    if (step >= kMostSteps) return Raised::Closed;  // the ranks negotiate, and count from 1 again
    if (digest != 0) add_digest(generation, bucket, step, digest);
    Board::Word& word = word_of(bucket);
    std::uint64_t seen = word.value.load(std::memory_order_acquire);
    for (;;) {
      Arrival arrival = unpack(seen);
      if (arrival.generation == generation && arrival.raised == kClosed) return Raised::Closed;
      if (arrival.generation == generation && arrival.step == step) {
        ++arrival.raised;
      } else {
        arrival = {generation, step, 1};
      }
      const bool commits = arrival.raised == ranks_;
      if (commits) word.note.store(rank_, std::memory_order_relaxed);
      if (exchange(word.value, seen, pack(arrival))) {
        return commits ? Raised::Committed : Raised::Waiting;
      }
    }
  }

  /// Returns whether the ranks raised `bucket` with different digests in `step`, which is
  /// committed.
  bool digests_differ(std::uint32_t generation, std::size_t bucket, std::uint32_t step) const {
    const std::uint64_t common = word_of(bucket).digests[step % 2].load(std::memory_order_relaxed);
    return is_same_step(common, pack_digest(generation, step, 0)) && (common & kDiffer) != 0;
  }

  /// Returns the last step in which all ranks have raised `bucket`; 0: none.
  std::uint32_t committed(std::uint32_t generation, std::size_t bucket) const {
    return committed_in(unpack(word_of(bucket).value.load(std::memory_order_acquire)), generation);
  }

  /// Returns the rank that committed `bucket` last.
  int last_rank(std::size_t bucket) const {
    return word_of(bucket).note.load(std::memory_order_relaxed);
  }

  /// Ends `generation`, which has `buckets`: nothing more is committed in it. Any rank may call it,
  /// any number of times; the first `reason` is kept.
  void close(std::uint32_t generation, std::size_t buckets, std::uint8_t reason) {
    for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
      std::atomic<std::uint64_t>& word = word_of(bucket).value;
      std::uint64_t seen = word.load(std::memory_order_acquire);
      std::uint64_t closed = 0;
      do {
        closed = pack({generation, committed_in(unpack(seen), generation), kClosed});
      } while (seen != closed && !exchange(word, seen, closed));
    }
    const std::uint64_t closed = std::uint64_t{generation} << 8 | reason;
    std::uint64_t seen = last_closed().load(std::memory_order_acquire);
    while (seen >> 8 < generation && !exchange(last_closed(), seen, closed)) {
    }
  }

  /// Returns the reason for which the generation was closed, once all its words are.
  std::optional<std::uint8_t> closed(std::uint32_t generation) const {
    const std::uint64_t last = last_closed().load(std::memory_order_acquire);
    if (last >> 8 < generation) return std::nullopt;
    return static_cast<std::uint8_t>(last & 0xff);
  }

 private:
  /// The content of a word: generation (32 bits), step (24), ranks that have raised it (8).
  struct Arrival {
    std::uint32_t generation = 0;
    std::uint32_t step = 0;
    std::uint64_t raised = 0;
  };
  static constexpr std::uint64_t kClosed = 0xff;  // as `raised`; `step` is the last committed one
  static constexpr std::uint32_t kMostSteps = 0xffffff;
  static_assert(kMostRanks < kClosed);

  static Arrival unpack(std::uint64_t value) {
    return {static_cast<std::uint32_t>(value >> 32),
            static_cast<std::uint32_t>(value >> 8) & kMostSteps, value & 0xff};
  }
  static std::uint64_t pack(const Arrival& arrival) {
    return std::uint64_t{arrival.generation} << 32 | std::uint64_t{arrival.step} << 8 |
           arrival.raised;
  }
  static bool exchange(std::atomic<std::uint64_t>& word, std::uint64_t& seen, std::uint64_t next) {
    return word.compare_exchange_weak(seen, next, std::memory_order_acq_rel,
                                      std::memory_order_acquire);
  }
  /// Returns the last committed step of this generation.
  std::uint32_t committed_in(const Arrival& arrival, std::uint32_t generation) const {
    if (arrival.generation != generation) return 0;
    const bool is_last = arrival.raised == ranks_ || arrival.raised == kClosed;
    return is_last ? arrival.step : arrival.step - 1;
  }

  /// The content of a digest's word: generation and step (16 and 24 bits), whether ranks differ
  /// (1), and the first bits of the first rank's digest.
  static constexpr int kDigestBits = 23;
  static constexpr std::uint64_t kDiffer = std::uint64_t{1} << kDigestBits;

  static std::uint64_t pack_digest(std::uint32_t generation, std::uint32_t step,
                                   std::uint64_t digest) {
    return std::uint64_t{generation & 0xffff} << 48 | std::uint64_t{step} << 24 |
           digest >> (64 - kDigestBits);
  }
  static bool is_same_step(std::uint64_t a, std::uint64_t b) { return a >> 24 == b >> 24; }

  /// The raise that follows publishes the word, so that relaxed order suffices.
  void add_digest(std::uint32_t generation, std::size_t bucket, std::uint32_t step,
                  std::uint64_t digest) {
    const std::uint64_t mine = pack_digest(generation, step, digest);
    std::atomic<std::uint64_t>& common = word_of(bucket).digests[step % 2];
    std::uint64_t seen = common.load(std::memory_order_relaxed);
    std::uint64_t next = 0;
    do {
      next = !is_same_step(seen, mine) ? mine : (seen & ~kDiffer) == mine ? seen : seen | kDiffer;
    } while (!common.compare_exchange_weak(seen, next, std::memory_order_relaxed));
  }

  /// Word 0 holds the last closed generation and the reason.
  std::atomic<std::uint64_t>& last_closed() const { return board_.words()[0].value; }
  Board::Word& word_of(std::size_t bucket) const { return board_.words()[bucket + 1]; }

  Board& board_;
  const int rank_;
  const std::uint64_t ranks_;
};

}  // namespace ronde
