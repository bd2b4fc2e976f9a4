// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backends/shm/slots/chunks.h"
#include "ronde/kernels.h"
#include "ronde/plugin/backend.h"

namespace ronde::shm {

/// Distributes the chunks of operations among the ranks, any of which can process any chunk.
///
/// Note [Claiming chunks]
/// The chunks of all operations are numbered consecutively, in the order of the operations, which
/// is the same on every rank. A rank that is free stores the number of the chunk that it is about
/// to claim, and then increments the common count past it by a compare-and-swap. When the chunk is
/// done, it stores that it works on none. As a rank stores its chunk before it increments the
/// count, a rank that sees the count at the end of an operation, and every rank at none or at a
/// later chunk, knows that the operation is finished. No rank waits for one that computes
/// elsewhere: the first ranks to arrive do most chunks.
///
/// Thread-safety: one thread of each rank at a time; different ranks may call it concurrently.
class ChunkClaims {
 public:
  static std::size_t bytes_for(std::size_t ranks) noexcept { return (1 + ranks) * sizeof(Line); }

  /// `memory`: shared by the ranks, zeroed, bytes_for(ranks) long, aligned to kLinePair; must
  /// outlive this. No rank may call anything else before every rank has constructed its own.
  ChunkClaims(std::span<std::byte> memory, std::size_t rank, std::size_t ranks);

  /// Claims the next chunk before `end` for this rank; nothing if all are claimed.
  std::optional<std::uint64_t> claim(std::uint64_t end) noexcept;
  /// Marks this rank's chunk as done.
  void finish() noexcept;

  /// Whether all chunks before `end` are done.
  bool finished(std::uint64_t end) const noexcept;

 private:
  struct alignas(kLinePair) Line {
    /// In the first line, the number of claimed chunks; in a rank's line, the chunk it works on
    /// plus one, or 0 for none.
    std::atomic<std::uint64_t> value{0};
  };

  Line& working_on(std::size_t rank) const noexcept { return lines_[1 + rank]; }

  const std::span<Line> lines_;
  const std::size_t rank_;
};

/// State that the symmetric operations of a rank share; operations may outlive the backend.
struct SymmetricContext {
  SymmetricContext(std::span<std::byte> claims_memory, std::shared_ptr<SymmetricHeap> heap_,
                   std::size_t rank_, std::function<void()> notify_peers_)
      : heap(std::move(heap_)),
        claims(claims_memory, rank_, heap->ranks()),
        rank(rank_),
        notify_peers(std::move(notify_peers_)) {}

  const std::shared_ptr<SymmetricHeap> heap;
  ChunkClaims claims;
  const std::size_t rank;
  const std::function<void()> notify_peers;
  std::uint64_t next_chunk = 0;  ///< the first chunk of the next operation

  // One thread at a time writes the counters, any may read them.
  std::atomic<std::uint64_t> operations = 0;
  std::atomic<std::uint64_t> bytes = 0;
  std::atomic<std::uint64_t> chunks = 0;       ///< of all operations
  std::atomic<std::uint64_t> chunks_here = 0;  ///< that this rank did
};

/// An allreduce of buffers that lie at the same offset in every rank's part of the symmetric heap.
/// Any rank that is free reduces the next chunk of all buffers and writes the result into each of
/// them. Every byte is read once and written once, and no rank has to wait for one that is
/// computing. One rank combines the elements of a chunk, in rank order: results are the same bits
/// everywhere and from run to run.
class SymmetricAllreduce final : public Operation {
 public:
  SymmetricAllreduce(std::shared_ptr<SymmetricContext> context, const AllreduceCall& call);

  bool poll() override;
  std::uint64_t progress() const override { return progress_; }

 private:
  /// A segment and its place.
  struct Part {
    std::size_t offset;  ///< bytes, in the heap
    std::size_t begin;   ///< its first element among those of all segments
    std::size_t end;
  };

  void reduce_chunk(std::size_t chunk);
  void reduce(std::size_t offset, std::size_t elements);

  const std::shared_ptr<SymmetricContext> context_;
  const Kernels& kernels_;
  const std::size_t element_bytes_;
  const Reduction reduction_;
  std::vector<Part> parts_;
  std::size_t elements_ = 0;
  std::size_t chunk_elements_;
  std::uint64_t first_chunk_;
  std::uint64_t end_;
  std::uint64_t progress_ = 0;
  bool is_out_of_work_ = false;      ///< found nothing to claim
  std::vector<const void*> inputs_;  ///< by rank
};

}  // namespace ronde::shm
