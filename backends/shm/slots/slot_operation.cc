// SPDX-License-Identifier: Apache-2.0
// The loop of every operation through the slot buffer. A rank stages two rounds ahead, reduces a
// staged round if the operation has that step, and consumes the oldest round once its peers have
// staged (or reduced) it. If none of that is possible, it stages as many rounds as there are free
// slots, and then returns from poll(), which is called again.
#include "backends/shm/slots/slot_operation.h"

#include <algorithm>
#include <cstring>

namespace ronde::shm {
namespace {

/// Rounds to stage before the oldest is consumed: enough that the peers have usually staged it by
/// then, and so few that its input is still in the cache when it is reduced.
constexpr std::uint64_t kAhead = 2;

}  // namespace

SlotOperation::SlotOperation(std::shared_ptr<SlotBufferContext> context)
    : context_(std::move(context)), first_round_(context_->buffer.next_round()) {
  context_->counters.operations.fetch_add(1, std::memory_order_relaxed);
}

bool SlotOperation::poll() {
  // Peers that started long before sleep; they wake up while this rank continues with later rounds.
  if (staged_ == 0 && step()) buffer().notify_peers();
  const bool has_finished = advance();
  buffer().notify_peers();
  return has_finished;
}

bool SlotOperation::advance() {
  while (!finished_) {
    if (all_staged() && all_consumed()) {
      finished_ = true;
      const std::uint64_t rounds = std::max(staged_, consumed_);
      context_->counters.rounds.fetch_add(rounds, std::memory_order_relaxed);
      context_->counters.staged_bytes.fetch_add(staged_bytes_, std::memory_order_relaxed);
      // An operation without rounds may overlap others, whose rounds are not over.
      if (rounds > 0) buffer().finish(absolute(rounds));
      finished();
    } else if (!step()) {
      return false;
    }
  }
  return true;
}

std::byte* SlotOperation::slot_to_fill(std::uint64_t round, std::size_t offset, std::size_t bytes) {
  if (buffer().ranks() == 1) return nullptr;
  staged_bytes_ += bytes;
  return buffer().slot(buffer().rank(), absolute(round)) + offset;
}

void SlotOperation::write_slot(std::uint64_t round, std::size_t offset, const void* input,
                               std::size_t bytes, Store store) {
  std::byte* const to = slot_to_fill(round, offset, bytes);
  if (to != nullptr) kernels().copy(to, input, bytes, store);
}

void SlotOperation::read_slot(std::byte* output, const std::byte* slot, std::size_t bytes,
                              Store store) const {
  // Lines of another core arrive faster if several pages are read at once, as processors prefetch
  // within a page only.
  constexpr std::size_t kStreams = 4;
  constexpr std::size_t kStep = 512;
  const std::size_t stream = bytes / (kStreams * kStep) * kStep;
  if (store == Store::Regular) {
    for (std::size_t at = 0; at < stream; at += kStep) {
      for (std::size_t i = 0; i < kStreams; ++i) {
        std::memcpy(output + i * stream + at, slot + i * stream + at, kStep);
      }
    }
    output += kStreams * stream;
    slot += kStreams * stream;
    bytes -= kStreams * stream;
  }
  kernels().copy(output, slot, bytes, store);
}

bool SlotOperation::step() {
  if (staged_ < consumed_ + kAhead && try_stage()) return true;
  if (reduced_ < staged_ && reduce(reduced_)) {
    ++reduced_;
    return true;
  }
  const bool staged_here = consumed_ < staged_ || all_staged();
  if (staged_here && !all_consumed() && may_consume(consumed_)) {
    consume(consumed_);
    ++consumed_;
    return true;
  }
  return try_stage();
}

bool SlotOperation::try_stage() {
  // This rank also reads its own result slot when it consumes.
  const bool is_free = all_consumed() || staged_ < consumed_ + buffer().shape().slots;
  if (all_staged() || !is_free || !may_stage(staged_)) return false;
  stage(staged_);
  ++staged_;
  return true;
}

}  // namespace ronde::shm
