// SPDX-License-Identifier: Apache-2.0
#include "core/src/algorithms/peer_messages.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

namespace ronde {
namespace {

constexpr std::align_val_t kLine{64};
/// Unused blocks that a pool keeps.
constexpr std::size_t kMostBlocks = 16;

}  // namespace

void ScratchPool::Free::operator()(std::byte* memory) const noexcept {
  ::operator delete(memory, kLine);
}

// Reserves, so that give_back() does not allocate.
ScratchPool::ScratchPool() {
  blocks_.reserve(kMostBlocks);
}

ScratchPool::Memory ScratchPool::take(std::size_t bytes) {
  Block block = find(std::max<std::size_t>(bytes, 64));
  const std::size_t size = block.bytes;
  return {block.memory.release(), [pool = shared_from_this(), size](std::byte* memory) {
            pool->give_back({size, std::unique_ptr<std::byte, Free>(memory)});
          }};
}

/// Returns the smallest unused block that is large enough, or a new one.
ScratchPool::Block ScratchPool::find(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    auto best = blocks_.end();
    for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
      if (block->bytes < bytes || block->bytes / 4 > bytes) continue;
      if (best == blocks_.end() || block->bytes < best->bytes) best = block;
    }
    if (best != blocks_.end()) {
      Block found = std::move(*best);
      blocks_.erase(best);
      return found;
    }
  }
  // Powers of two, so that blocks fit other sizes, too.
  const std::size_t size = std::bit_ceil(bytes);
  auto* const memory = static_cast<std::byte*>(::operator new(size, kLine));
  return {size, std::unique_ptr<std::byte, Free>(memory)};
}

void ScratchPool::give_back(Block block) noexcept {
  const std::lock_guard lock(mutex_);
  if (blocks_.size() == kMostBlocks) blocks_.erase(blocks_.begin());
  blocks_.push_back(std::move(block));
}

PeerMessages::PeerMessages(std::shared_ptr<const FabricChannel> channel, std::uint32_t stream,
                           std::shared_ptr<void> memory)
    : channel_(std::move(channel)),
      tag_{channel_->number, stream},
      scratch_(std::make_shared<Scratch>(Scratch{std::move(memory), {}})),
      batch_(channel_->fabric->make_batch(scratch_)) {}

PeerMessages::PeerMessages(const PeerMessages& other)
    : channel_(other.channel_),
      tag_(other.tag_),
      scratch_(other.scratch_),
      batch_(channel_->fabric->make_batch(scratch_)) {}

std::byte* PeerMessages::scratch(std::size_t bytes) {
  static std::byte never_accessed;
  if (!moves_data()) return &never_accessed;
  return scratch_->blocks.emplace_back(channel_->scratch->take(bytes)).get();
}

void PeerMessages::reduce(std::byte* output, std::span<const void* const> inputs, std::size_t bytes,
                          const Reduction& reduction) const {
  if (bytes == 0) return;
  if (!moves_data()) return channel_->simulate_reduction(bytes * (inputs.size() - 1));
  best_kernels().reduce(output, inputs, bytes / size_of(reduction.dtype), reduction,
                        Store::Regular);
}

void PeerMessages::copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
  if (moves_data() && to != from && bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace ronde
