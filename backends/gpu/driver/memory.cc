// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/driver/memory.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace ronde::cuda {
namespace {

constexpr std::size_t kSmallestBlock = 4096;
constexpr unsigned kForAllContexts = 1;  // CU_MEMHOSTALLOC_PORTABLE

}  // namespace

DeviceMemory::DeviceMemory(std::shared_ptr<const DeviceContext> context, std::size_t bytes) {
  DevicePointer address = 0;
  context->call(
      "allocating " + std::to_string(bytes) + " bytes on GPU " + std::to_string(context->index()),
      &DriverApi::allocate, &address, bytes);
  memory_ = {writable(address), Free{std::move(context), bytes}};
}

void DeviceMemory::Free::operator()(void* memory) const noexcept {
  context->release(context->api().free, cuda::address_of(memory));
}

struct PinnedPool::Shared {
  struct Block {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };

  Shared(std::shared_ptr<const DeviceContext> device, std::size_t most)
      : context(std::move(device)), keep_bytes(most) {}
  ~Shared() {
    for (const Block& block : unused) unpin(block.memory);
  }

  void unpin(std::byte* block) const noexcept { context->release(context->api().host_free, block); }

  const std::shared_ptr<const DeviceContext> context;
  const std::size_t keep_bytes;
  std::mutex mutex;
  std::vector<Block> unused;  ///< has room for all that are pinned
  std::size_t unused_bytes = 0;
  std::size_t pinned = 0;  ///< blocks, used or not
};

PinnedPool::PinnedPool(std::shared_ptr<const DeviceContext> context, std::size_t keep_bytes)
    : shared_(std::make_shared<Shared>(std::move(context), keep_bytes)) {}

PinnedBlock PinnedPool::take(std::size_t bytes) {
  PinnedBlock block;
  const std::size_t size = std::bit_ceil(std::max(bytes, kSmallestBlock));
  const std::lock_guard lock(shared_->mutex);
  std::vector<Shared::Block>& unused = shared_->unused;
  const auto found = std::find_if(unused.begin(), unused.end(),
                                  [size](const auto& each) { return each.bytes == size; });
  void* memory = nullptr;
  if (found != unused.end()) {
    memory = std::exchange(*found, unused.back()).memory;
    unused.pop_back();
    shared_->unused_bytes -= size;
  } else {
    // Giving one back must not need memory.
    unused.reserve(shared_->pinned + 1);
    shared_->context->call("pinning " + std::to_string(size) + " bytes of host memory",
                           &DriverApi::host_allocate, &memory, size, kForAllContexts);
    ++shared_->pinned;
  }
  block.memory_ = {static_cast<std::byte*>(memory), PinnedBlock::GiveBack{shared_, size}};
  return block;
}

void PinnedBlock::GiveBack::operator()(std::byte* memory) const noexcept {
  const std::lock_guard lock(pool->mutex);
  if (pool->unused_bytes + bytes <= pool->keep_bytes) {
    pool->unused.push_back({memory, bytes});
    pool->unused_bytes += bytes;
  } else {
    pool->unpin(memory);
    --pool->pinned;
  }
}

}  // namespace ronde::cuda
