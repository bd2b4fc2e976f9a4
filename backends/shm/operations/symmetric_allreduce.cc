// SPDX-License-Identifier: Apache-2.0
// An allreduce in place in the symmetric heap, in chunks of 128 KiB. A rank claims the next chunk,
// reduces all ranks' buffers block by block into that of the first rank, and copies each block to
// the others. A rank that finds no chunk left waits until the others have finished theirs.
#include "backends/shm/operations/symmetric_allreduce.h"

#include <algorithm>

#include "ronde/error.h"

namespace ronde::shm {
namespace {

/// Large enough that claiming costs little, and small enough that ranks finish at about the same
/// time.
constexpr std::size_t kChunkBytes = std::size_t{128} << 10;
/// Size of the blocks in which results are copied; a block stays in the first-level cache.
constexpr std::size_t kCacheBlock = std::size_t{4} << 10;

/// Prefetches the next block: hardware prefetchers stop at the end of a page, where it begins.
void prefetch(const void* address, std::size_t bytes) {
  const auto* line = static_cast<const std::byte*>(address);
  for (std::size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(line + at, 1);
}

}  // namespace

// The memory is zeroed, which is a valid state of all lines.
ChunkClaims::ChunkClaims(std::span<std::byte> memory, std::size_t rank, std::size_t ranks)
    : lines_(reinterpret_cast<Line*>(memory.data()), 1 + ranks), rank_(rank) {}

std::optional<std::uint64_t> ChunkClaims::claim(std::uint64_t end) noexcept {
  std::atomic<std::uint64_t>& claimed = lines_[0].value;
  std::atomic<std::uint64_t>& mine = working_on(rank_).value;
  std::uint64_t next = claimed.load(std::memory_order_acquire);
  while (next < end) {
    mine.store(next + 1, std::memory_order_release);
    // The release half orders the store to `mine` before the new count.
    if (claimed.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      return next;
    }
  }
  mine.store(0, std::memory_order_release);
  return std::nullopt;
}

void ChunkClaims::finish() noexcept {
  working_on(rank_).value.store(0, std::memory_order_release);
}

bool ChunkClaims::finished(std::uint64_t end) const noexcept {
  if (lines_[0].value.load(std::memory_order_acquire) < end) return false;
  for (const Line& line : lines_.subspan(1)) {
    const std::uint64_t chunk = line.value.load(std::memory_order_acquire);
    if (chunk != 0 && chunk <= end) return false;
  }
  return true;
}

SymmetricAllreduce::SymmetricAllreduce(std::shared_ptr<SymmetricContext> context,
                                       const AllreduceCall& call)
    : context_(std::move(context)),
      kernels_(best_kernels()),
      element_bytes_(size_of(call.dtype)),
      reduction_(call.reduction()),
      chunk_elements_(kChunkBytes / element_bytes_),
      first_chunk_(context_->next_chunk),
      inputs_(context_->heap->ranks(), nullptr) {
  for (const Segment& segment : call.segments) {
    const auto offset = context_->heap->offset_of(segment.output, segment.count * element_bytes_);
    if (!offset) throw Error("a symmetric buffer does not lie in the symmetric heap");
    parts_.push_back({*offset, elements_, elements_ + segment.count});
    elements_ += segment.count;
  }
  end_ = first_chunk_ + (elements_ + chunk_elements_ - 1) / chunk_elements_;
  context_->next_chunk = end_;
  context_->operations.fetch_add(1, std::memory_order_relaxed);
  context_->bytes.fetch_add(elements_ * element_bytes_, std::memory_order_relaxed);
  context_->chunks.fetch_add(end_ - first_chunk_, std::memory_order_relaxed);
}

bool SymmetricAllreduce::poll() {
  while (const auto chunk = context_->claims.claim(end_)) {
    reduce_chunk(*chunk - first_chunk_);
    context_->claims.finish();
    context_->chunks_here.fetch_add(1, std::memory_order_relaxed);
    ++progress_;
  }
  if (!std::exchange(is_out_of_work_, true)) {
    // A peer that found nothing left to claim may sleep until this rank has finished its chunks.
    context_->notify_peers();
  }
  return context_->claims.finished(end_);
}

void SymmetricAllreduce::reduce_chunk(std::size_t chunk) {
  const std::size_t begin = chunk * chunk_elements_;
  const std::size_t end = std::min(begin + chunk_elements_, elements_);
  // The first part that ends after `begin`.
  auto part = std::upper_bound(parts_.begin(), parts_.end(), begin,
                               [](std::size_t at, const Part& other) { return at < other.end; });
  for (std::size_t at = begin; at < end; ++part) {
    const std::size_t stop = std::min(end, part->end);
    reduce(part->offset + (at - part->begin) * element_bytes_, stop - at);
    at = stop;
  }
}

/// Reduces `elements` of all ranks, from `offset` of the heap on.
void SymmetricAllreduce::reduce(std::size_t offset, std::size_t elements) {
  const SymmetricHeap& heap = *context_->heap;
  const std::size_t bytes = elements * element_bytes_;
  for (std::size_t at = 0; at < bytes; at += kCacheBlock) {
    const std::size_t length = std::min(kCacheBlock, bytes - at);
    const std::size_t ahead = std::min(kCacheBlock, bytes - at - length);
    for (std::size_t rank = 0; rank < heap.ranks(); ++rank) {
      inputs_[rank] = heap.at(rank, offset + at);
      prefetch(heap.at(rank, offset + at + length), ahead);
    }
    // Reduce in place into one rank's buffer, and copy from there to the others'.
    std::byte* const result = heap.at(0, offset + at);
    kernels_.reduce(result, inputs_, length / element_bytes_, reduction_, Store::Regular);
    for (std::size_t rank = 1; rank < heap.ranks(); ++rank) {
      kernels_.copy(heap.at(rank, offset + at), result, length, Store::Regular);
    }
  }
}

}  // namespace ronde::shm
