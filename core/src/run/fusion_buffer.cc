// SPDX-License-Identifier: Apache-2.0
#include "core/src/run/fusion_buffer.h"

#include <algorithm>
#include <atomic>
#include <new>

namespace ronde {
namespace {

constexpr std::align_val_t kAlignment{64};

/// A node at the beginning of abandoned memory, so that abandoning cannot fail for want of memory.
struct Abandoned {
  Abandoned* next;
};

std::atomic<Abandoned*> abandoned_memory{nullptr};

}  // namespace

void FusionBuffer::Free::operator()(std::byte* memory) const noexcept {
  ::operator delete(memory, kAlignment);
}

FusionBuffer::FusionBuffer(std::size_t limit) : limit_(std::max<std::size_t>(limit, 64)) {}

std::byte* FusionBuffer::reserve(std::size_t bytes) {
  if (bytes > capacity_) {
    const std::size_t wanted = std::min(std::max(bytes, 2 * capacity_), limit_);
    memory_.reset();
    capacity_ = 0;
    // The list node of abandon() lies before the data, in a cache line of its own.
    memory_.reset(static_cast<std::byte*>(::operator new(wanted + 64, kAlignment)));
    capacity_ = wanted;
  }
  return memory_ ? memory_.get() + 64 : nullptr;
}

void FusionBuffer::abandon() noexcept {
  if (!memory_) return;
  auto* node = new (memory_.release()) Abandoned{abandoned_memory.load()};
  while (!abandoned_memory.compare_exchange_weak(node->next, node)) {
  }
  capacity_ = 0;
}

}  // namespace ronde
