// SPDX-License-Identifier: Apache-2.0
// Each word packs generation, step and how many ranks have raised it; every change is one
// compare-and-swap: Note [Arrival words].
#include "core/src/agree/arrival_words.h"

#include "ronde/error.h"

namespace ronde {
namespace {

/// The content of a word: generation (32 bits), step (24), ranks that have raised it (8).
struct Arrival {
  std::uint32_t generation = 0;
  std::uint32_t step = 0;
  std::uint64_t raised = 0;
};

constexpr std::uint64_t kClosed = 0xff;  // in place of `raised`; `step` is the last committed one
constexpr std::uint32_t kMostSteps = 0xffffff;

Arrival unpack(std::uint64_t value) {
  return {static_cast<std::uint32_t>(value >> 32),
          static_cast<std::uint32_t>(value >> 8) & kMostSteps, value & 0xff};
}

std::uint64_t pack(const Arrival& arrival) {
  return std::uint64_t{arrival.generation} << 32 | std::uint64_t{arrival.step} << 8 |
         arrival.raised;
}

/// Returns the last committed step of an arrival of this generation.
std::uint32_t committed_step(const Arrival& arrival, std::uint64_t ranks) {
  return arrival.raised == ranks || arrival.raised == kClosed ? arrival.step : arrival.step - 1;
}

/// The content of a digest's word: generation and step (16 and 24 bits), whether ranks differ (1),
/// and the first bits of the first rank's digest.
constexpr int kDigestBits = 23;
constexpr std::uint64_t kDiffer = std::uint64_t{1} << kDigestBits;

constexpr std::uint64_t digest_of(std::uint32_t generation, std::uint32_t step,
                                  std::uint64_t digest) {
  return std::uint64_t{generation & 0xffff} << 48 | std::uint64_t{step} << 24 |
         digest >> (64 - kDigestBits);
}

constexpr bool same_step(std::uint64_t a, std::uint64_t b) {
  return a >> 24 == b >> 24;
}

}  // namespace

ArrivalWords::ArrivalWords(Board& board, int rank, int ranks)
    : board_(board), rank_(rank), ranks_(static_cast<std::uint64_t>(ranks)) {
  static_assert(kMostRanks < kClosed);
  if (ranks > kMostRanks || board.words().size() < 2) {
    throw Error("arrival words count at most 254 ranks and need a board of two words");
  }
}

/// Word 0 holds the last closed generation and the reason.
std::atomic<std::uint64_t>& ArrivalWords::word(std::size_t bucket) const {
  return board_.words()[bucket + 1].value;
}

std::atomic<std::uint64_t>& ArrivalWords::digest_word(std::size_t bucket,
                                                      std::uint32_t step) const {
  return board_.words()[bucket + 1].digests[step % 2];
}

/// The raise that follows publishes the word, so that relaxed order suffices.
void ArrivalWords::add_digest(std::uint32_t generation, std::size_t bucket, std::uint32_t step,
                              std::uint64_t digest) {
  const std::uint64_t mine = digest_of(generation, step, digest);
  std::atomic<std::uint64_t>& common = digest_word(bucket, step);
  std::uint64_t seen = common.load(std::memory_order_relaxed);
  std::uint64_t next = 0;
  do {
    next = !same_step(seen, mine) ? mine : (seen & ~kDiffer) == mine ? seen : seen | kDiffer;
  } while (!common.compare_exchange_weak(seen, next, std::memory_order_relaxed));
}

bool ArrivalWords::digests_differ(std::uint32_t generation, std::size_t bucket,
                                  std::uint32_t step) const {
  const std::uint64_t common = digest_word(bucket, step).load(std::memory_order_relaxed);
  return same_step(common, digest_of(generation, step, 0)) && (common & kDiffer) != 0;
}

ArrivalWords::Raised ArrivalWords::raise(std::uint32_t generation, std::size_t bucket,
                                         std::uint32_t step, std::uint64_t digest) {
  if (step >= kMostSteps) return Raised::Closed;  // the ranks negotiate, and count from 1 again
  if (digest != 0) add_digest(generation, bucket, step, digest);
  std::uint64_t seen = word(bucket).load(std::memory_order_acquire);
  for (;;) {
    Arrival arrival = unpack(seen);
    if (arrival.generation == generation && arrival.raised == kClosed) return Raised::Closed;
    if (arrival.generation == generation && arrival.step == step) {
      ++arrival.raised;
    } else {
      arrival = {generation, step, 1};
    }
    if (arrival.raised == ranks_) {
      board_.words()[bucket + 1].note.store(rank_, std::memory_order_relaxed);
    }
    if (word(bucket).compare_exchange_weak(seen, pack(arrival), std::memory_order_acq_rel,
                                           std::memory_order_acquire)) {
      return arrival.raised == ranks_ ? Raised::Committed : Raised::Waiting;
    }
  }
}

std::uint32_t ArrivalWords::committed(std::uint32_t generation, std::size_t bucket) const {
  const Arrival arrival = unpack(word(bucket).load(std::memory_order_acquire));
  return arrival.generation == generation ? committed_step(arrival, ranks_) : 0;
}

int ArrivalWords::last_rank(std::size_t bucket) const {
  return board_.words()[bucket + 1].note.load(std::memory_order_relaxed);
}

void ArrivalWords::close(std::uint32_t generation, std::size_t buckets, std::uint8_t reason) {
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    std::uint64_t seen = word(bucket).load(std::memory_order_acquire);
    std::uint64_t closed = 0;
    do {
      const Arrival arrival = unpack(seen);
      if (arrival.generation == generation && arrival.raised == kClosed) break;
      const bool is_current = arrival.generation == generation;
      closed = pack({generation, is_current ? committed_step(arrival, ranks_) : 0, kClosed});
    } while (!word(bucket).compare_exchange_weak(seen, closed, std::memory_order_acq_rel,
                                                 std::memory_order_acquire));
  }
  std::atomic<std::uint64_t>& last = board_.words()[0].value;
  std::uint64_t seen = last.load(std::memory_order_acquire);
  const std::uint64_t closed = std::uint64_t{generation} << 8 | reason;
  while (seen >> 8 < generation &&
         !last.compare_exchange_weak(seen, closed, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
  }
}

std::optional<std::uint8_t> ArrivalWords::closed(std::uint32_t generation) const {
  const std::uint64_t last = board_.words()[0].value.load(std::memory_order_acquire);
  if (last >> 8 < generation) return std::nullopt;
  return static_cast<std::uint8_t>(last & 0xff);
}

}  // namespace ronde
