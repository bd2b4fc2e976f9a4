// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

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

  ArrivalWords(Board& board, int rank, int ranks);

  /// Returns how many buckets a schedule may have.
  std::size_t capacity() const noexcept { return board_.words().size() - 1; }

  enum class Raised { Waiting, Committed, Closed };

  /// Marks this rank as ready for `bucket` in `step` (counted from 1, without gaps). `digest`: that
  /// of the bucket's operations on this rank; 0: none.
  Raised raise(std::uint32_t generation, std::size_t bucket, std::uint32_t step,
               std::uint64_t digest = 0);

  /// Returns whether the ranks raised `bucket` with different digests in `step`, which is
  /// committed.
  bool digests_differ(std::uint32_t generation, std::size_t bucket, std::uint32_t step) const;

  /// Returns the last step in which all ranks have raised `bucket`; 0: none.
  std::uint32_t committed(std::uint32_t generation, std::size_t bucket) const;

  /// Returns the rank that committed `bucket` last.
  int last_rank(std::size_t bucket) const;

  /// Ends `generation`, which has `buckets`: nothing more is committed in it. Any rank may call it,
  /// any number of times; the first `reason` is kept.
  void close(std::uint32_t generation, std::size_t buckets, std::uint8_t reason);

  /// Returns the reason for which the generation was closed, once all its words are.
  std::optional<std::uint8_t> closed(std::uint32_t generation) const;

 private:
  std::atomic<std::uint64_t>& word(std::size_t bucket) const;
  std::atomic<std::uint64_t>& digest_word(std::size_t bucket, std::uint32_t step) const;
  void add_digest(std::uint32_t generation, std::size_t bucket, std::uint32_t step,
                  std::uint64_t digest);

  Board& board_;
  const int rank_;
  const std::uint64_t ranks_;
};

}  // namespace ronde
