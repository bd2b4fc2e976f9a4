// SPDX-License-Identifier: Apache-2.0
// Broadcast, allgather, alltoall and reducescatter through the slot buffer. The root of a broadcast
// copies its segments into its slots, and the other ranks copy from there to their outputs. A round
// of the others carries the same number of bytes of every rank's part; a slot holds the part itself
// (allgather), or side by side a piece for each other rank. The receivers copy the pieces, or
// reduce them in rank order.
#include "backends/shm/operations/exchanges.h"

#include <algorithm>
#include <utility>

namespace ronde::shm {

Broadcast::Broadcast(std::shared_ptr<SlotBufferContext> context, const BroadcastCall& call)
    : SlotOperation(context),
      element_bytes_(size_of(call.dtype)),
      root_(static_cast<std::size_t>(call.root)),
      is_root_(buffer().rank() == root_),
      stores_(context->stores.borrow(total_elements(call.segments) * element_bytes_, false)),
      walk_(call.segments, total_elements(call.segments),
            chunk_elements(total_elements(call.segments), element_bytes_,
                           buffer().shape().slot_bytes),
            0) {}

void Broadcast::stage(std::uint64_t round) {
  walk_.advance([&](const Piece& piece) {
    const std::size_t bytes = piece.count * element_bytes_;
    const std::size_t offset = piece.offset * element_bytes_;
    const std::byte* const input = advanced(piece.segment->input, offset);
    write_slot(round, piece.position * element_bytes_, input, bytes, stores_.buffer(bytes));
    if (piece.segment->input == piece.segment->output) return;
    kernels().copy(advanced(piece.segment->output, offset), input, bytes, stores_.output(bytes));
  });
  buffer().publish_staged(absolute(round));
}

void Broadcast::consume(std::uint64_t round) {
  const std::byte* const slot = buffer().slot(root_, absolute(round));
  walk_.advance([&](const Piece& piece) {
    const std::size_t bytes = piece.count * element_bytes_;
    kernels().copy(advanced(piece.segment->output, piece.offset * element_bytes_),
                   slot + piece.position * element_bytes_, bytes, stores_.output(bytes));
  });
  buffer().publish_consumed(absolute(round));
}

PartwiseOperation::PartwiseOperation(std::shared_ptr<SlotBufferContext> context,
                                     std::size_t chunk_bytes, std::size_t largest)
    : SlotOperation(std::move(context)), chunk_bytes_(chunk_bytes), largest_(largest) {}

std::size_t PartwiseOperation::shared_chunk_bytes(const SlotBufferShape& shape) {
  constexpr std::size_t kLargestElement = 8;
  const std::size_t even = shape.slot_bytes / std::max<std::size_t>(shape.ranks - 1, 1);
  const std::size_t unit = even >= kCacheLine ? kCacheLine : kLargestElement;
  return even / unit * unit;
}

void PartwiseOperation::stage(std::uint64_t round) {
  const AbsentPieces absent = stage_parts(round, staged_bytes_);
  staged_bytes_ += chunk_bytes_;
  buffer().publish_staged(absolute(round), absent);
}

void PartwiseOperation::consume(std::uint64_t round) {
  consume_parts(round, consumed_bytes_);
  consumed_bytes_ += chunk_bytes_;
  buffer().publish_consumed(absolute(round));
}

Allgather::Allgather(std::shared_ptr<SlotBufferContext> context, const AllgatherCall& call)
    : PartwiseOperation(context, context->buffer.shape().slot_bytes,
                        Parts(call.counts, size_of(call.dtype)).largest()),
      input_(call.input),
      output_(call.output),
      parts_(call.counts, size_of(call.dtype)),
      stores_(context->stores.borrow(parts_.total(), false)) {}

AbsentPieces Allgather::stage_parts(std::uint64_t round, std::size_t done) {
  const auto [offset, bytes] = parts_.piece(buffer().rank(), done, chunk_bytes());
  if (bytes == 0) return {};
  const std::byte* const input = advanced(input_, done);
  write_slot(round, 0, input, bytes, stores_.buffer(bytes));
  if (output_ == nullptr) return {};
  std::byte* const output = advanced(output_, offset);
  if (output != input) kernels().copy(output, input, bytes, stores_.output(bytes));
  return {};
}

void Allgather::consume_parts(std::uint64_t round, std::size_t done) {
  if (output_ == nullptr) return;
  for (std::size_t rank = 0; rank < buffer().ranks(); ++rank) {
    const auto [offset, bytes] = parts_.piece(rank, done, chunk_bytes());
    if (rank == buffer().rank() || bytes == 0) continue;
    kernels().copy(advanced(output_, offset), buffer().slot(rank, absolute(round)), bytes,
                   stores_.output(bytes));
  }
}

Alltoall::Alltoall(std::shared_ptr<SlotBufferContext> context, const AlltoallCall& call)
    : PartwiseOperation(context, shared_chunk_bytes(context->buffer.shape()),
                        call.largest_count * size_of(call.dtype)),
      input_(call.input),
      output_(call.output),
      sent_(call.send_counts, size_of(call.dtype)),
      received_(call.receive_counts, size_of(call.dtype)),
      stores_(context->stores.borrow(sent_.total(), false)) {}

AbsentPieces Alltoall::stage_parts(std::uint64_t round, std::size_t done) {
  const std::size_t own = buffer().rank();
  for (std::size_t rank = 0; rank < buffer().ranks(); ++rank) {
    const auto [offset, bytes] = sent_.piece(rank, done, chunk_bytes());
    if (bytes == 0) continue;
    const std::byte* const input = advanced(input_, offset);
    if (rank == own && output_ == nullptr) continue;
    if (rank == own) {
      const std::size_t to = received_.piece(own, done, chunk_bytes()).offset;
      kernels().copy(advanced(output_, to), input, bytes, stores_.output(bytes));
    } else {
      write_slot(round, place(own, rank), input, bytes, stores_.buffer(bytes));
    }
  }
  return {};
}

void Alltoall::consume_parts(std::uint64_t round, std::size_t done) {
  if (output_ == nullptr) return;
  const std::size_t own = buffer().rank();
  for (std::size_t rank = 0; rank < buffer().ranks(); ++rank) {
    const auto [offset, bytes] = received_.piece(rank, done, chunk_bytes());
    if (rank == own || bytes == 0) continue;
    kernels().copy(advanced(output_, offset),
                   buffer().slot(rank, absolute(round)) + place(rank, own), bytes,
                   stores_.output(bytes));
  }
}

Reducescatter::Reducescatter(std::shared_ptr<SlotBufferContext> context,
                             const ReducescatterCall& call)
    : PartwiseOperation(context, shared_chunk_bytes(context->buffer.shape()),
                        Parts(call.counts, size_of(call.dtype)).largest()),
      input_(call.input),
      output_(call.output),
      element_bytes_(size_of(call.dtype)),
      reduction_(call.reduction()),
      parts_(call.counts, element_bytes_),
      stores_(context->stores.borrow(parts_.total(), false)),
      inputs_(context->buffer.ranks(), nullptr) {}

AbsentPieces Reducescatter::stage_parts(std::uint64_t round, std::size_t done) {
  AbsentPieces absent;
  if (input_ == nullptr) return absent.set(0);
  for (std::size_t rank = 0; rank < buffer().ranks(); ++rank) {
    const auto [offset, bytes] = parts_.piece(rank, done, chunk_bytes());
    if (rank == buffer().rank() || bytes == 0) continue;
    write_slot(round, place(buffer().rank(), rank), advanced(input_, offset), bytes,
               stores_.buffer(bytes));
  }
  return absent;
}

void Reducescatter::consume_parts(std::uint64_t round, std::size_t done) {
  const std::size_t own = buffer().rank();
  const auto [offset, bytes] = parts_.piece(own, done, chunk_bytes());
  if (bytes == 0 || output_ == nullptr) return;
  for (std::size_t rank = 0; rank < buffer().ranks(); ++rank) {
    const bool adds = buffer().absent(rank, absolute(round)) == nullptr;
    inputs_[rank] = adds ? buffer().slot(rank, absolute(round)) + place(rank, own) : nullptr;
  }
  inputs_[own] = input_ == nullptr ? nullptr : advanced(input_, offset);
  kernels().reduce(advanced(output_, done), inputs_, bytes / element_bytes_, reduction_,
                   stores_.output(bytes));
}

}  // namespace ronde::shm
