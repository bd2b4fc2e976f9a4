// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/memory.h"

#include <algorithm>
#include <bit>
#include <string>

namespace ronde::cuda {
namespace {

constexpr std::size_t kSmallestBlock = 4096;
constexpr unsigned kForAllContexts = 1;  // CU_MEMHOSTALLOC_PORTABLE

}  // namespace

DeviceMemory::DeviceMemory(std::shared_ptr<const DeviceContext> context, std::size_t bytes)
    : context_(std::move(context)), bytes_(bytes) {
  const Current current(*context_);
  check(
      context_->api(),
      "allocating " + std::to_string(bytes) + " bytes on GPU " + std::to_string(context_->index()),
      context_->api().allocate, &address_, bytes);
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  free();
  context_ = std::move(other.context_);
  address_ = std::exchange(other.address_, 0);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void DeviceMemory::free() noexcept {
  if (address_ == 0) return;
  context_->release(context_->api().free, std::exchange(address_, 0));
}

struct PinnedPool::Shared {
  Shared(std::shared_ptr<const DeviceContext> device, std::size_t most)
      : context(std::move(device)), keep_bytes(most) {}
  ~Shared() {
    for (const auto& [bytes, blocks] : unused) {
      for (std::byte* block : blocks) unpin(block);
    }
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  void unpin(std::byte* block) const noexcept { context->release(context->api().host_free, block); }

  const std::shared_ptr<const DeviceContext> context;
  const std::size_t keep_bytes;
  mutable std::mutex mutex;
  std::map<std::size_t, std::vector<std::byte*>> unused;  ///< by size
  std::map<std::size_t, std::size_t> pinned;              ///< how many there are of a size
  std::size_t unused_bytes = 0;
  Counts counts;
};

PinnedPool::PinnedPool(std::shared_ptr<const DeviceContext> context, std::size_t keep_bytes)
    : shared_(std::make_shared<Shared>(std::move(context), keep_bytes)) {}

PinnedBlock PinnedPool::take(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(std::max(bytes, kSmallestBlock));
  const std::lock_guard lock(shared_->mutex);
  std::vector<std::byte*>& unused = shared_->unused[size];
  if (!unused.empty()) {
    std::byte* const block = unused.back();
    unused.pop_back();
    shared_->unused_bytes -= size;
    ++shared_->counts.hits;
    return {shared_, block, size};
  }
  // Giving one back must not need memory.
  std::size_t& pinned = shared_->pinned[size];
  unused.reserve(pinned + 1);
  const DeviceContext& context = *shared_->context;
  const Current current(context);
  void* memory = nullptr;
  check(context.api(), "pinning " + std::to_string(size) + " bytes of host memory",
        context.api().host_allocate, &memory, size, kForAllContexts);
  ++pinned;
  ++shared_->counts.misses;
  shared_->counts.bytes += size;
  return {shared_, static_cast<std::byte*>(memory), size};
}

PinnedPool::Counts PinnedPool::counts() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->counts;
}

PinnedBlock& PinnedBlock::operator=(PinnedBlock&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  pool_ = std::move(other.pool_);
  memory_ = std::exchange(other.memory_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void PinnedBlock::give_back() noexcept {
  if (memory_ == nullptr) return;
  PinnedPool::Shared& pool = *pool_;
  const std::lock_guard lock(pool.mutex);
  if (pool.unused_bytes + bytes_ <= pool.keep_bytes) {
    pool.unused.find(bytes_)->second.push_back(memory_);
    pool.unused_bytes += bytes_;
  } else {
    pool.unpin(memory_);
    --pool.pinned.find(bytes_)->second;
    pool.counts.bytes -= bytes_;
  }
  memory_ = nullptr;
}

}  // namespace ronde::cuda
