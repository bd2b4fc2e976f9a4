// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/allreduce.h"

#include <algorithm>
#include <utility>

namespace ronde::shm {
namespace {

/// Results pass through a block of this size, which stays in the first-level cache.
constexpr std::size_t kBlockBytes = std::size_t{4} << 10;

}  // namespace

RingAllreduce::RingAllreduce(std::shared_ptr<RingContext> context, const AllreduceCall& call,
                             StoreChoice::Use stores)
    : RingOperation(std::move(context)),
      format_(call),
      reduction_(reduction_of(format_.wire(), call.op, format_.prescale(), call.postscale,
                              call.divisor(ring().ranks()))),
      stores_(std::move(stores)),
      staging_(walk_of(call, ring().shape().slot_bytes, kMostPieces)),
      consuming_(staging_),
      inputs_(ring().ranks(), nullptr) {}

std::byte* RingAllreduce::block() {
  block_.resize(kBlockBytes);
  return block_.data();
}

std::size_t RingAllreduce::block_elements() const noexcept {
  return kBlockBytes / format_.wire_bytes();
}

void RingAllreduce::stage_elements(std::uint64_t round, std::size_t position,
                                   const std::byte* input, std::size_t count) {
  const std::size_t bytes = count * format_.wire_bytes();
  std::byte* const to = slot_to_fill(round, position * format_.wire_bytes(), bytes);
  if (to != nullptr) format_.pack(to, input, count, stores_.ring(bytes));
}

void RingAllreduce::find_inputs(std::uint64_t round, const Piece& piece, std::size_t skipped,
                                std::size_t count) {
  const std::size_t offset = (piece.position + skipped) * format_.wire_bytes();
  for (std::size_t rank = 0; rank < inputs_.size(); ++rank) {
    if (rank == ring().rank()) continue;
    inputs_[rank] = ring().operand(rank, absolute(round), piece.index, offset);
  }
  const std::byte* own = piece.input(skipped, format_.user_bytes());
  if (own != nullptr && format_.converts()) {
    format_.pack(block(), own, count, Store::Regular);
    own = block();
  }
  inputs_[ring().rank()] = own;
}

const std::byte* RingAllreduce::reduce_inputs(std::byte* output, std::size_t count,
                                              bool will_read) {
  const Store store = stores_.output(count * format_.user_bytes());
  // What was streamed away could not be read again.
  const bool by_block = format_.converts() || (will_read && store == Store::Streaming);
  if (!by_block) {
    kernels().reduce(output, inputs_, count, reduction_, store);
    return output;
  }
  kernels().reduce(block(), inputs_, count, reduction_, Store::Regular);
  format_.unpack(output, block(), count, store);
  return block();
}

void FlatAllreduce::stage(std::uint64_t round) {
  const StoreChoice::Use::Timing timing(stores_);
  AbsentPieces absent;
  staging_.advance([&](const Piece& piece) {
    const std::byte* const input = piece.input(0, format_.user_bytes());
    if (input == nullptr) {
      absent.set(piece.index);
    } else {
      stage_elements(round, piece.position, input, piece.count);
    }
  });
  ring().publish_staged(absolute(round), absent);
}

void FlatAllreduce::consume(std::uint64_t round) {
  stores_.move(consuming_.next_count() * format_.wire_bytes());
  const StoreChoice::Use::Timing timing(stores_);
  consuming_.advance([&](const Piece& piece) {
    const std::size_t most = format_.converts() ? block_elements() : piece.count;
    for (std::size_t at = 0; at < piece.count; at += most) {
      const std::size_t count = std::min(most, piece.count - at);
      find_inputs(round, piece, at, count);
      reduce_inputs(piece.output(at, format_.user_bytes()), count, false);
    }
  });
  ring().publish_consumed(absolute(round));
}

Slice SlicedAllreduce::slice_of(std::size_t rank, std::size_t round_elements) const {
  constexpr std::size_t kLine = 64;
  return even_slice(rank, inputs_.size(), round_elements, kLine / format_.wire_bytes());
}

void SlicedAllreduce::stage(std::uint64_t round) {
  const StoreChoice::Use::Timing timing(stores_);
  const std::size_t elements = staging_.next_count();
  // Nobody but this rank would read its own slice.
  const Slice own = slice_of(ring().rank(), elements);
  AbsentPieces absent;
  const auto copy = [&](const Piece& piece, const Slice& range) {
    if (range.count() == 0) return;
    stage_elements(round, range.begin,
                   piece.input(range.begin - piece.position, format_.user_bytes()), range.count());
  };
  staging_.advance([&](const Piece& piece) {
    if (piece.segment->input == nullptr) {
      absent.set(piece.index);
      return;
    }
    copy(piece, piece.within({0, own.begin}));
    copy(piece, piece.within({own.end, elements}));
  });
  ring().publish_staged(absolute(round), absent);
}

bool SlicedAllreduce::reduce(std::uint64_t round) {
  if (reducing_.at_end() || !ring().staged_by_all(absolute(round))) return false;
  const StoreChoice::Use::Timing timing(stores_);
  const Slice own = slice_of(ring().rank(), reducing_.next_count());
  reducing_.advance([&](const Piece& piece) {
    const Slice range = piece.within(own);
    if (range.count() > 0) reduce_part(round, piece, range.begin, range.end);
  });
  ring().publish_reduced(absolute(round));
  return true;
}

/// Elements [begin, end) of the round, which belong to `piece`.
void SlicedAllreduce::reduce_part(std::uint64_t round, const Piece& piece, std::size_t begin,
                                  std::size_t end) {
  const std::size_t element_bytes = format_.wire_bytes();
  std::byte* const slot = ring().slot(holder_of(ring().rank()), absolute(round));
  for (std::size_t at = begin; at < end; at += block_elements()) {
    const std::size_t count = std::min(block_elements(), end - at);
    const std::size_t skipped = at - piece.position;
    find_inputs(round, piece, skipped, count);
    const std::byte* const results =
        reduce_inputs(piece.output(skipped, format_.user_bytes()), count, true);
    if (ring().ranks() == 1) continue;
    const std::size_t bytes = count * element_bytes;
    kernels().copy(slot + at * element_bytes, results, bytes, stores_.ring(bytes));
  }
}

bool SlicedAllreduce::may_consume(std::uint64_t round) {
  return rounds_reduced() > round && ring().reduced_by_all(absolute(round));
}

void SlicedAllreduce::consume(std::uint64_t round) {
  const std::size_t elements = consuming_.next_count();
  stores_.move(elements * format_.wire_bytes());
  const StoreChoice::Use::Timing timing(stores_);
  consuming_.advance([&](const Piece& piece) {
    for (std::size_t rank = 0; rank < ring().ranks(); ++rank) {
      if (rank == ring().rank()) continue;
      const Slice range = piece.within(slice_of(rank, elements));
      if (range.count() == 0) continue;
      std::byte* const output = piece.output(range.begin - piece.position, format_.user_bytes());
      const std::byte* const slot =
          ring().slot(holder_of(rank), absolute(round)) + range.begin * format_.wire_bytes();
      const Store store = stores_.output(range.count() * format_.user_bytes());
      if (format_.converts()) {
        format_.unpack(output, slot, range.count(), store);
      } else {
        read_slot(output, slot, range.count() * format_.wire_bytes(), store);
      }
    }
  });
  ring().publish_consumed(absolute(round));
}

}  // namespace ronde::shm
