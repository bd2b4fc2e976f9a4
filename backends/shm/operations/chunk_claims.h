// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

namespace ronde::shm {

/// How ranks share the work of operations that any of them can do alone, chunk by chunk.
///
/// Note [Claiming chunks]
/// The chunks of all operations are numbered through, in the order of the operations, alike on
/// every rank. A rank that has time says which chunk it is about to take and then moves the common
/// count past it by a compare-and-swap; when it is done with the chunk it says that it works on
/// none. So a rank that sees the count at the end of an operation, and every rank at none or at a
/// later chunk, knows that the operation is finished: a rank says which chunk it takes before the
/// count moves. Nobody waits for a rank that computes elsewhere: the first ranks do most chunks.
///
/// Thread-safety: one thread of each rank at a time; ranks may call it at the same time.
class ChunkClaims {
 public:
  static std::size_t bytes_for(std::size_t ranks) noexcept { return (1 + ranks) * sizeof(Line); }

  /// `memory`: common to the ranks, zeroed, bytes_for(ranks) long, aligned to kLinePair; outlives
  /// this. Nothing else may be called before every rank has made its own.
  ChunkClaims(std::span<std::byte> memory, std::size_t rank, std::size_t ranks);

  /// The next chunk before `end`, which is this rank's then; nothing if all are taken.
  std::optional<std::uint64_t> claim(std::uint64_t end) noexcept;
  /// This rank's chunk is done.
  void finish() noexcept;

  /// All chunks before `end` are done.
  bool finished(std::uint64_t end) const noexcept;
  /// Processors fetch lines in pairs.
  static constexpr std::size_t kLinePair = 128;

 private:
  struct alignas(kLinePair) Line {
    /// The first line: chunks claimed. A rank's: the chunk it works on plus one, 0 for none.
    std::atomic<std::uint64_t> value{0};
  };

  Line& working_on(std::size_t rank) const noexcept { return lines_[1 + rank]; }

  const std::span<Line> lines_;
  const std::size_t rank_;
};

}  // namespace ronde::shm
