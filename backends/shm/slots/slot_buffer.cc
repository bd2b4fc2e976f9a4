// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/slots/slot_buffer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "backends/shm/slots/chunks.h"
#include "ronde/division.h"
#include "ronde/error.h"

namespace ronde::shm {
namespace {

constexpr std::size_t kLargestElement = 8;

}  // namespace

/// The header at the beginning of a rank's part.
struct SlotBuffer::Header {
  static constexpr std::size_t kMostSlots = 16;

  struct alignas(kLinePair) CountLine {
    std::atomic<std::uint64_t> count{0};
    /// For kStaged, by slot: whether the round has absent pieces. In the line of the counter, so
    /// that a reader gets both with one miss.
    std::array<bool, kMostSlots> has_absent = {};
  };

  std::array<CountLine, kSteps> steps;
  alignas(kLinePair) std::atomic<std::uint64_t> leaders_word{0};
  alignas(kLinePair) std::array<AbsentPieces, kMostSlots> absent;
};

std::size_t SlotBufferShape::bytes_of_rank() const noexcept {
  constexpr std::size_t kHeaderBytes = kSlotBufferAlignment;
  return rounded_up(kHeaderBytes + slots * slot_bytes, kSlotBufferAlignment);
}

std::size_t slot_bytes_within(std::size_t wanted, std::size_t most_bytes,
                              std::size_t slots) noexcept {
  constexpr std::size_t kUnit = std::size_t{4} << 10;
  return std::max(std::min(wanted, most_bytes / slots) / kUnit * kUnit, kUnit);
}

SlotBuffer::SlotBuffer(std::span<std::byte> memory, const SlotBufferShape& shape, std::size_t rank,
                       std::function<void()> notify_peers)
    : memory_(memory), shape_(shape), rank_(rank), notify_peers_(std::move(notify_peers)) {
  static_assert(sizeof(Header) <= kSlotBufferAlignment);
  if (shape.slots == 0 || shape.slots > Header::kMostSlots ||
      shape.slot_bytes < shape.ranks * kLargestElement || shape.slot_bytes % kCacheLine != 0 ||
      memory.size() < shape.bytes() || rank >= shape.ranks) {
    throw Error("a slot buffer of " + std::to_string(shape.ranks) + " ranks cannot have " +
                std::to_string(shape.slots) + " slots of " + std::to_string(shape.slot_bytes) +
                " bytes in " + std::to_string(memory.size()) + " bytes");
  }
  if (!notify_peers_) throw Error("a slot buffer needs to know how to notify its peers");
  for (auto& seen : seen_) seen.resize(shape.ranks, 0);
  std::byte* const own = memory_.data() + rank * shape.bytes_of_rank();
  std::memset(own, 0, shape.bytes_of_rank());
  std::construct_at(reinterpret_cast<Header*>(own));
}

SlotBuffer::Header& SlotBuffer::header(std::size_t rank) const noexcept {
  return *reinterpret_cast<Header*>(memory_.data() + rank * shape_.bytes_of_rank());
}

std::byte* SlotBuffer::slot(std::size_t rank, std::uint64_t round) const noexcept {
  std::byte* const part = memory_.data() + rank * shape_.bytes_of_rank();
  return part + kSlotBufferAlignment + (round % shape_.slots) * shape_.slot_bytes;
}

const AbsentPieces* SlotBuffer::absent(std::size_t rank, std::uint64_t round) const noexcept {
  const std::size_t slot = round % shape_.slots;
  const Header& of_rank = header(rank);
  return of_rank.steps[kStaged].has_absent[slot] ? &of_rank.absent[slot] : nullptr;
}

const std::byte* SlotBuffer::operand(std::size_t rank, std::uint64_t round, std::size_t piece,
                                     std::size_t offset) const noexcept {
  const AbsentPieces* const pieces = absent(rank, round);
  const bool adds = pieces == nullptr || !pieces->test(piece);
  return adds ? slot(rank, round) + offset : nullptr;
}

std::atomic<std::uint64_t>& SlotBuffer::leaders_word() const noexcept {
  return header(0).leaders_word;
}

bool SlotBuffer::staged_by(std::size_t rank, std::uint64_t round) {
  std::uint64_t& seen = seen_[kStaged][rank];
  if (seen <= round) seen = header(rank).steps[kStaged].count.load(std::memory_order_acquire);
  return seen > round;
}

bool SlotBuffer::reached(Step step, std::uint64_t round) {
  std::vector<std::uint64_t>& seen = seen_[step];
  for (std::size_t rank = 0; rank < seen.size(); ++rank) {
    if (rank == rank_ || seen[rank] > round) continue;
    seen[rank] = header(rank).steps[step].count.load(std::memory_order_acquire);
    if (seen[rank] <= round) return false;
  }
  return true;
}

void SlotBuffer::publish(Step step, std::uint64_t count) {
  own_[step] = count;
  header(rank_).steps[step].count.store(count, std::memory_order_release);
  has_news_ = true;
}

void SlotBuffer::notify_peers() {
  if (has_news_) notify_peers_();
  has_news_ = false;
}

void SlotBuffer::publish_staged(std::uint64_t round, const AbsentPieces& absent) {
  const std::size_t slot = round % shape_.slots;
  Header& own = header(rank_);
  const bool has_absent = absent.any();
  if (has_absent) own.absent[slot] = absent;
  if (own.steps[kStaged].has_absent[slot] != has_absent) {
    own.steps[kStaged].has_absent[slot] = has_absent;
  }
  publish(kStaged, round + 1);
}

void SlotBuffer::finish(std::uint64_t end) {
  next_round_ = std::max(next_round_, end);
  for (const Step step : {kStaged, kConsumed}) {
    if (own_[step] < end) publish(step, end);
  }
}

}  // namespace ronde::shm
