// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/operations/message.h"

#include <algorithm>

#include "backends/shm/slots/chunks.h"

namespace ronde::shm {

Message::Message(std::shared_ptr<MessageContext> context, const void* from, void* to,
                 std::size_t bytes, int peer)
    : context_(std::move(context)),
      from_(from),
      to_(to),
      bytes_(bytes),
      peer_(static_cast<std::size_t>(peer)) {
  context_->messages.fetch_add(1, std::memory_order_relaxed);
  context_->bytes.fetch_add(bytes, std::memory_order_relaxed);
}

Message::Message(std::shared_ptr<MessageContext> context, const SendCall& call)
    : Message(std::move(context), call.input, nullptr, call.count * size_of(call.dtype),
              call.peer) {}

Message::Message(std::shared_ptr<MessageContext> context, const RecvCall& call)
    : Message(std::move(context), nullptr, call.output, call.count * size_of(call.dtype),
              call.peer) {}

bool Message::poll() {
  while (done_ < bytes_) {
    const std::size_t part = std::min(bytes_ - done_, context_->outboxes.slot_bytes());
    if (!move(part)) return false;
    done_ += part;
    ++parts_;
  }
  return true;
}

bool Message::move(std::size_t bytes) {
  Outboxes& outboxes = context_->outboxes;
  if (from_ != nullptr) {
    std::byte* const slot = outboxes.next_slot();
    if (slot == nullptr) return false;
    context_->kernels.copy(slot, advanced(from_, done_), bytes, Store::Regular);
    outboxes.publish(peer_);
  } else {
    const std::byte* const slot = outboxes.arrived(peer_);
    if (slot == nullptr) return false;
    context_->kernels.copy(advanced(to_, done_), slot, bytes, Store::Regular);
    outboxes.take(peer_);
  }
  return true;
}

}  // namespace ronde::shm
