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

#include "backends/shm/operations/chunk_claims.h"
#include "ronde/kernels.h"
#include "ronde/plugin/backend.h"

namespace ronde::shm {

/// State that the symmetric operations of a rank share. They may outlive the backend.
struct SymmetricContext {
  /// `memory` begins with the claims; the heap lies behind them.
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
  std::uint64_t next_chunk = 0;  ///< the first of the next operation

  // Written by one thread at a time, read by any.
  std::atomic<std::uint64_t> operations = 0;
  std::atomic<std::uint64_t> bytes = 0;
  std::atomic<std::uint64_t> chunks = 0;       ///< of all operations
  std::atomic<std::uint64_t> chunks_here = 0;  ///< that this rank did
};

/// An allreduce of buffers that lie at the same offset in every rank's part of the symmetric heap:
/// any rank that has time reduces the next chunk of all buffers and writes the result into each of
/// them. Every byte is read once and written once; no rank has to wait for another one that is
/// computing. Elements are combined in rank order, by one rank: results are the same bits
/// everywhere and from run to run.
class SymmetricAllreduce final : public Operation {
 public:
  SymmetricAllreduce(std::shared_ptr<SymmetricContext> context, const AllreduceCall& call);

  bool poll() override;
  std::uint64_t progress() const override { return progress_; }

 private:
  /// A segment, and where it is.
  struct Part {
    std::size_t offset;  ///< bytes, in the heap
    std::size_t begin;   ///< its first element among all
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
