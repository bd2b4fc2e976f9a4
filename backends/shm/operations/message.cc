// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/operations/message.h"

#include <algorithm>
#include <array>

#include "backends/shm/slots/chunks.h"
#include "ronde/division.h"
#include "ronde/error.h"

namespace ronde::shm {
namespace {

constexpr std::size_t kMostOutboxSlots = 16;

}  // namespace

struct alignas(kLinePair) Outboxes::Line {
  std::atomic<std::uint64_t> count{0};
  /// The slots of the parts sent. That of part k, from 0 on, is at k modulo the number of slots, as
  /// no more parts can be in flight.
  std::array<std::uint8_t, kMostOutboxSlots> slots = {};
};

Outboxes::Outboxes(std::span<std::byte> memory, const SlotBufferShape& shape, std::size_t rank,
                   std::function<void()> notify_peers)
    : memory_(memory),
      shape_(shape),
      rank_(rank),
      notify_peers_(std::move(notify_peers)),
      last_(shape.slots),
      sent_(shape.ranks, 0),
      received_(shape.ranks, 0) {
  if (shape.slots == 0 || shape.slots > kMostOutboxSlots || memory.size() < bytes_for(shape)) {
    throw Error("outboxes of " + std::to_string(shape.ranks) + " ranks cannot have " +
                std::to_string(shape.slots) + " slots in " + std::to_string(memory.size()) +
                " bytes");
  }
  for (std::size_t other = 0; other < shape.ranks; ++other) {
    std::construct_at(&sent(rank, other));
    std::construct_at(&received(rank, other));
  }
}

std::size_t Outboxes::header_bytes(const SlotBufferShape& shape) noexcept {
  return rounded_up(2 * shape.ranks * sizeof(Line), kSlotBufferAlignment);
}

std::size_t Outboxes::bytes_of_rank(const SlotBufferShape& shape) noexcept {
  return header_bytes(shape) + rounded_up(shape.slots * shape.slot_bytes, kSlotBufferAlignment);
}

std::size_t Outboxes::bytes_for(const SlotBufferShape& shape) noexcept {
  return shape.ranks * bytes_of_rank(shape);
}

std::byte* Outboxes::part_of(std::size_t rank) const noexcept {
  return memory_.data() + rank * bytes_of_rank(shape_);
}

Outboxes::Line& Outboxes::sent(std::size_t rank, std::size_t receiver) const noexcept {
  return reinterpret_cast<Line*>(part_of(rank))[receiver];
}

Outboxes::Line& Outboxes::received(std::size_t rank, std::size_t sender) const noexcept {
  return reinterpret_cast<Line*>(part_of(rank))[shape_.ranks + sender];
}

std::byte* Outboxes::next_slot() {
  const Part& last = last_[next_];
  const bool is_free =
      last.number == 0 ||
      received(last.receiver, rank_).count.load(std::memory_order_acquire) >= last.number;
  if (!is_free) return nullptr;
  return part_of(rank_) + header_bytes(shape_) + next_ * shape_.slot_bytes;
}

void Outboxes::publish(std::size_t receiver) {
  Line& line = sent(rank_, receiver);
  std::uint64_t& count = sent_[receiver];
  line.slots[count % shape_.slots] = static_cast<std::uint8_t>(next_);
  ++count;
  last_[next_] = {receiver, count};
  next_ = (next_ + 1) % shape_.slots;
  line.count.store(count, std::memory_order_release);
  notify_peers_();
}

const std::byte* Outboxes::arrived(std::size_t sender) const {
  const Line& line = sent(sender, rank_);
  if (line.count.load(std::memory_order_acquire) <= received_[sender]) return nullptr;
  const std::size_t slot = line.slots[received_[sender] % shape_.slots];
  return part_of(sender) + header_bytes(shape_) + slot * shape_.slot_bytes;
}

void Outboxes::release(std::size_t sender) {
  received(rank_, sender).count.store(++received_[sender], std::memory_order_release);
  notify_peers_();
}

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
    outboxes.release(peer_);
  }
  return true;
}

}  // namespace ronde::shm
