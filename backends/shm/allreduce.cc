// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/allreduce.h"

#include <algorithm>
#include <utility>

namespace ronde::shm {
namespace {

ChunkWalk walk_of(const AllreduceCall& call, const RingShape& shape) {
  const std::size_t total = total_elements(call.segments);
  return {call.segments, total, chunk_elements(total, size_of(call.dtype), shape.slot_bytes),
          kMostPieces};
}

/// Where the other ranks staged the piece; null for ranks that add nothing to it. The own entry is
/// left alone.
void find_staged(std::vector<const void*>& inputs, const Ring& ring, std::uint64_t round,
                 std::size_t piece, std::size_t offset_bytes) {
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    if (rank == ring.rank()) continue;
    inputs[rank] = ring.operand(rank, round, piece, offset_bytes);
  }
}

/// Results pass through a block of this size, which stays in the first-level cache.
constexpr std::size_t kBlockBytes = std::size_t{4} << 10;

}  // namespace

FlatAllreduce::FlatAllreduce(std::shared_ptr<RingContext> context, const AllreduceCall& call,
                             StoreChoice::Use stores)
    : RingOperation(std::move(context)),
      element_bytes_(size_of(call.dtype)),
      reduction_(reduction_of(call.dtype, call.op, call.prescale, call.postscale,
                              call.divisor(ring().ranks()))),
      stores_(std::move(stores)),
      staging_(walk_of(call, ring().shape())),
      consuming_(staging_),
      inputs_(ring().ranks(), nullptr) {}

void FlatAllreduce::stage(std::uint64_t round) {
  const StoreChoice::Use::Timing timing(stores_);
  AbsentPieces absent;
  staging_.advance([&](const Piece& piece) {
    const void* const input = piece.input(0, element_bytes_);
    const std::size_t bytes = piece.count * element_bytes_;
    if (input == nullptr) {
      absent.set(piece.index);
    } else {
      write_slot(round, piece.position * element_bytes_, input, bytes, stores_.ring(bytes));
    }
  });
  ring().publish_staged(absolute(round), absent);
}

void FlatAllreduce::consume(std::uint64_t round) {
  stores_.move(consuming_.next_count() * element_bytes_);
  const StoreChoice::Use::Timing timing(stores_);
  consuming_.advance([&](const Piece& piece) {
    const std::size_t at = piece.position * element_bytes_;
    find_staged(inputs_, ring(), absolute(round), piece.index, at);
    inputs_[ring().rank()] = piece.input(0, element_bytes_);
    kernels().reduce(piece.output(0, element_bytes_), inputs_, piece.count, reduction_,
                     stores_.output(piece.count * element_bytes_));
  });
  ring().publish_consumed(absolute(round));
}

SlicedAllreduce::SlicedAllreduce(std::shared_ptr<RingContext> context, const AllreduceCall& call,
                                 StoreChoice::Use stores)
    : RingOperation(std::move(context)),
      element_bytes_(size_of(call.dtype)),
      reduction_(reduction_of(call.dtype, call.op, call.prescale, call.postscale,
                              call.divisor(ring().ranks()))),
      stores_(std::move(stores)),
      staging_(walk_of(call, ring().shape())),
      reducing_(staging_),
      consuming_(staging_),
      inputs_(ring().ranks(), nullptr),
      block_(kBlockBytes) {}

Slice SlicedAllreduce::slice_of(std::size_t rank, std::size_t round_elements) const {
  constexpr std::size_t kLine = 64;
  return even_slice(rank, inputs_.size(), round_elements, kLine / element_bytes_);
}

void SlicedAllreduce::stage(std::uint64_t round) {
  const StoreChoice::Use::Timing timing(stores_);
  const std::size_t elements = staging_.next_count();
  // Nobody but this rank would read its own slice.
  const Slice own = slice_of(ring().rank(), elements);
  AbsentPieces absent;
  const auto copy = [&](const Piece& piece, std::size_t begin, std::size_t end) {
    begin = std::max(begin, piece.position);
    end = std::min(end, piece.position + piece.count);
    if (begin >= end) return;
    const std::size_t bytes = (end - begin) * element_bytes_;
    write_slot(round, begin * element_bytes_, piece.input(begin - piece.position, element_bytes_),
               bytes, stores_.ring(bytes));
  };
  staging_.advance([&](const Piece& piece) {
    if (piece.segment->input == nullptr) {
      absent.set(piece.index);
      return;
    }
    copy(piece, 0, own.begin);
    copy(piece, own.end, elements);
  });
  ring().publish_staged(absolute(round), absent);
}

bool SlicedAllreduce::reduce(std::uint64_t round) {
  if (reducing_.at_end() || !ring().staged_by_all(absolute(round))) return false;
  const StoreChoice::Use::Timing timing(stores_);
  const Slice own = slice_of(ring().rank(), reducing_.next_count());
  reducing_.advance([&](const Piece& piece) {
    const std::size_t begin = std::max(own.begin, piece.position);
    const std::size_t end = std::min(own.end, piece.position + piece.count);
    if (begin < end) reduce_part(round, piece, begin, end);
  });
  ring().publish_reduced(absolute(round));
  return true;
}

/// Elements [begin, end) of the round, which belong to `piece`.
void SlicedAllreduce::reduce_part(std::uint64_t round, const Piece& piece, std::size_t begin,
                                  std::size_t end) {
  const std::size_t own = ring().rank();
  const std::size_t most = kBlockBytes / element_bytes_;
  std::byte* const results = ring().slot(holder_of(own), absolute(round));
  for (std::size_t at = begin; at < end; at += most) {
    const std::size_t count = std::min(most, end - at);
    const std::size_t bytes = count * element_bytes_;
    const std::size_t skipped = at - piece.position;
    find_staged(inputs_, ring(), absolute(round), piece.index, at * element_bytes_);
    inputs_[own] = piece.input(skipped, element_bytes_);
    std::byte* const output = piece.output(skipped, element_bytes_);
    // What was streamed away could not be read again for the slot.
    const bool streams = stores_.output(bytes) == Store::Streaming;
    std::byte* const first = streams ? block_.data() : output;
    kernels().reduce(first, inputs_, count, reduction_, Store::Regular);
    if (ring().ranks() > 1) {
      kernels().copy(results + at * element_bytes_, first, bytes, stores_.ring(bytes));
    }
    if (streams) kernels().copy(output, first, bytes, Store::Streaming);
  }
}

bool SlicedAllreduce::may_consume(std::uint64_t round) {
  return rounds_reduced() > round && ring().reduced_by_all(absolute(round));
}

void SlicedAllreduce::consume(std::uint64_t round) {
  const std::size_t elements = consuming_.next_count();
  stores_.move(elements * element_bytes_);
  const StoreChoice::Use::Timing timing(stores_);
  consuming_.advance([&](const Piece& piece) {
    for (std::size_t rank = 0; rank < ring().ranks(); ++rank) {
      if (rank == ring().rank()) continue;
      const Slice slice = slice_of(rank, elements);
      const std::size_t begin = std::max(slice.begin, piece.position);
      const std::size_t end = std::min(slice.end, piece.position + piece.count);
      if (begin >= end) continue;
      const std::size_t skipped = begin - piece.position;
      const std::size_t bytes = (end - begin) * element_bytes_;
      read_slot(piece.output(skipped, element_bytes_),
                ring().slot(holder_of(rank), absolute(round)) + begin * element_bytes_, bytes,
                stores_.output(bytes));
    }
  });
  ring().publish_consumed(absolute(round));
}

}  // namespace ronde::shm
