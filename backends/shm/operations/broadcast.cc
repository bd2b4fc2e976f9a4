// SPDX-License-Identifier: Apache-2.0
// A broadcast through the slot buffer: the root copies its segments into its slots, round by round,
// and the other ranks copy from there to their outputs.
#include "backends/shm/operations/broadcast.h"

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

}  // namespace ronde::shm
