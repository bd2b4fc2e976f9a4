// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/message.h"

#include <algorithm>

#include "backends/shm/chunks.h"

namespace ronde::shm {

Message::Message(std::shared_ptr<MessageContext> context, std::size_t bytes, int peer)
    : context_(std::move(context)), peer_(static_cast<std::size_t>(peer)), bytes_(bytes) {
  context_->messages.fetch_add(1, std::memory_order_relaxed);
  context_->bytes.fetch_add(bytes, std::memory_order_relaxed);
}

bool Message::poll() {
  while (done_ < bytes_) {
    const std::size_t part = std::min(bytes_ - done_, context_->outboxes.slot_bytes());
    if (!move(done_, part)) return false;
    done_ += part;
    ++parts_;
  }
  return true;
}

Send::Send(std::shared_ptr<MessageContext> context, const SendCall& call)
    : Message(std::move(context), call.count * size_of(call.dtype), call.peer),
      input_(call.input) {}

bool Send::move(std::size_t done, std::size_t bytes) {
  std::byte* const slot = context_->outboxes.next_slot();
  if (slot == nullptr) return false;
  context_->kernels.copy(slot, advanced(input_, done), bytes, Store::Regular);
  context_->outboxes.publish(peer_);
  return true;
}

Recv::Recv(std::shared_ptr<MessageContext> context, const RecvCall& call)
    : Message(std::move(context), call.count * size_of(call.dtype), call.peer),
      output_(call.output) {}

bool Recv::move(std::size_t done, std::size_t bytes) {
  const std::byte* const slot = context_->outboxes.arrived(peer_);
  if (slot == nullptr) return false;
  context_->kernels.copy(advanced(output_, done), slot, bytes, Store::Regular);
  context_->outboxes.take(peer_);
  return true;
}

}  // namespace ronde::shm
