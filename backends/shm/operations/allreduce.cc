// SPDX-License-Identifier: Apache-2.0
// Every rank copies its input into its slot, round by round. One-shot: each rank then reduces all
// slots straight to its own output. Two-shot: each rank reduces one slice of all slots, writes the
// result into a slot, and copies the results of the other slices. Elements may be reduced in
// another type than that of input and output; they are converted while they are copied.
#include "backends/shm/operations/allreduce.h"

#include <algorithm>

namespace ronde::shm {
namespace {

/// Size of the block through which results pass; it stays in the first-level cache.
constexpr std::size_t kBlockBytes = std::size_t{4} << 10;

}  // namespace

SlotAllreduce::SlotAllreduce(std::shared_ptr<SlotBufferContext> context, const AllreduceCall& call,
                             StoreChoice::Use stores)
    : SlotOperation(std::move(context)),
      format_(call),
      reduction_({format_.wire(), call.op, format_.prescale(), call.final}),
      stores_(std::move(stores)),
      staging_(walk_of(call, buffer().shape().slot_bytes, kMostPieces)),
      consuming_(staging_),
      inputs_(buffer().ranks(), nullptr) {}

std::byte* SlotAllreduce::block() {
  block_.resize(kBlockBytes);
  return block_.data();
}

std::size_t SlotAllreduce::block_elements() const noexcept {
  return kBlockBytes / format_.wire_bytes();
}

void SlotAllreduce::stage_outside(std::uint64_t round, const Slice& own) {
  const StoreChoice::Use::Timing timing(stores_);
  const std::size_t elements = staging_.next_count();
  AbsentPieces absent;
  const auto copy = [&](const Piece& piece, const Slice& range) {
    if (range.count() == 0) return;
    const std::size_t bytes = range.count() * format_.wire_bytes();
    std::byte* const to = slot_to_fill(round, range.begin * format_.wire_bytes(), bytes);
    if (to == nullptr) return;
    format_.pack(to, piece.input(range.begin - piece.position, format_.user_bytes()), range.count(),
                 stores_.buffer(bytes));
  };
  staging_.advance([&](const Piece& piece) {
    if (piece.segment->input == nullptr) {
      absent.set(piece.index);
      return;
    }
    copy(piece, piece.within({0, own.begin}));
    copy(piece, piece.within({own.end, elements}));
  });
  buffer().publish_staged(absolute(round), absent);
}

void SlotAllreduce::copy_results(const Piece& piece, const Slice& slice, const std::byte* slot) {
  const Slice range = piece.within(slice);
  if (range.count() == 0 || piece.segment->output == nullptr) return;
  std::byte* const to = piece.output(range.begin - piece.position, format_.user_bytes());
  const std::byte* const from = slot + range.begin * format_.wire_bytes();
  const Store store = stores_.output(range.count() * format_.user_bytes());
  if (format_.converts()) {
    format_.unpack(to, from, range.count(), store);
  } else {
    read_slot(to, from, range.count() * format_.wire_bytes(), store);
  }
}

void SlotAllreduce::find_inputs(std::uint64_t round, const Piece& piece, std::size_t skipped,
                                std::size_t count) {
  const std::size_t offset = (piece.position + skipped) * format_.wire_bytes();
  for (std::size_t rank = 0; rank < inputs_.size(); ++rank) {
    if (rank == buffer().rank()) continue;
    inputs_[rank] = buffer().operand(rank, absolute(round), piece.index, offset);
  }
  const std::byte* own = piece.input(skipped, format_.user_bytes());
  if (own != nullptr && format_.converts()) {
    format_.pack(block(), own, count, Store::Regular);
    own = block();
  }
  inputs_[buffer().rank()] = own;
}

const std::byte* SlotAllreduce::reduce_inputs(std::byte* output, std::size_t count,
                                              bool will_read) {
  const Store store = stores_.output(count * format_.user_bytes());
  // Streaming stores would remove the results from the cache.
  const bool by_block =
      format_.converts() || output == nullptr || (will_read && store == Store::Streaming);
  if (!by_block) {
    kernels().reduce(output, inputs_, count, reduction_, store);
    return output;
  }
  kernels().reduce(block(), inputs_, count, reduction_, Store::Regular);
  if (output != nullptr) format_.unpack(output, block(), count, store);
  return block();
}

void OneShotAllreduce::consume(std::uint64_t round) {
  stores_.move(consuming_.next_count() * format_.wire_bytes());
  const StoreChoice::Use::Timing timing(stores_);
  consuming_.advance([&](const Piece& piece) {
    if (piece.segment->output == nullptr) return;
    const std::size_t most = format_.converts() ? block_elements() : piece.count;
    for (std::size_t at = 0; at < piece.count; at += most) {
      const std::size_t count = std::min(most, piece.count - at);
      find_inputs(round, piece, at, count);
      reduce_inputs(piece.output(at, format_.user_bytes()), count, false);
    }
  });
  buffer().publish_consumed(absolute(round));
}

Slice TwoShotAllreduce::slice_of(std::size_t rank, std::size_t round_elements) const {
  return even_slice(rank, inputs_.size(), round_elements, kCacheLine / format_.wire_bytes());
}

bool TwoShotAllreduce::reduce(std::uint64_t round) {
  if (reducing_.at_end() || !buffer().staged_by_all(absolute(round))) return false;
  const StoreChoice::Use::Timing timing(stores_);
  const Slice own = slice_of(buffer().rank(), reducing_.next_count());
  reducing_.advance([&](const Piece& piece) {
    const Slice range = piece.within(own);
    if (range.count() > 0) reduce_part(round, piece, range.begin, range.end);
  });
  buffer().publish_reduced(absolute(round));
  return true;
}

/// Reduces the elements [begin, end) of the round, which belong to `piece`.
void TwoShotAllreduce::reduce_part(std::uint64_t round, const Piece& piece, std::size_t begin,
                                   std::size_t end) {
  const std::size_t element_bytes = format_.wire_bytes();
  std::byte* const slot = buffer().slot(holder_of(buffer().rank()), absolute(round));
  for (std::size_t at = begin; at < end; at += block_elements()) {
    const std::size_t count = std::min(block_elements(), end - at);
    const std::size_t skipped = at - piece.position;
    find_inputs(round, piece, skipped, count);
    const std::byte* const results =
        reduce_inputs(piece.output(skipped, format_.user_bytes()), count, true);
    if (buffer().ranks() == 1) continue;
    const std::size_t bytes = count * element_bytes;
    kernels().copy(slot + at * element_bytes, results, bytes, stores_.buffer(bytes));
  }
}

bool TwoShotAllreduce::may_consume(std::uint64_t round) {
  return rounds_reduced() > round && buffer().reduced_by_all(absolute(round));
}

void TwoShotAllreduce::consume(std::uint64_t round) {
  const std::size_t elements = consuming_.next_count();
  stores_.move(elements * format_.wire_bytes());
  const StoreChoice::Use::Timing timing(stores_);
  consuming_.advance([&](const Piece& piece) {
    for (std::size_t rank = 0; rank < buffer().ranks(); ++rank) {
      if (rank == buffer().rank()) continue;
      copy_results(piece, slice_of(rank, elements),
                   buffer().slot(holder_of(rank), absolute(round)));
    }
  });
  buffer().publish_consumed(absolute(round));
}

}  // namespace ronde::shm
