// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/ipc/registrations.h"

#include <chrono>
#include <string>

namespace ronde::cuda {
namespace {

/// Memory that was freed and allocated again at its address has another id. Handles are compared as
/// well: the ids of a process that takes the place of another may repeat.
bool is_same_allocation(const ExportedMemory& one, const ExportedMemory& other) {
  return one.size == other.size && one.buffer_id == other.buffer_id &&
         one.handle.reserved == other.handle.reserved;
}

}  // namespace

std::optional<ExportedMemory> export_memory(const DeviceContext& context, DevicePointer address,
                                            std::size_t bytes) {
  const std::string doing = "exporting memory of GPU " + std::to_string(context.index());
  const auto ask = [&](int attribute, auto& value) {
    context.call(doing, &DriverApi::pointer_attribute, static_cast<void*>(&value), attribute,
                 address);
  };
  int is_capable = 0;
  ask(kPointerIsLegacyIpcCapable, is_capable);
  if (is_capable == 0) return std::nullopt;
  ExportedMemory memory{.bytes = bytes};
  DevicePointer base = 0;
  std::size_t size = 0;
  context.call(doing, &DriverApi::address_range, &base, &size, address);
  if (address + bytes > base + size) {
    throw Error("CUDA failed while " + doing + ": the " + std::to_string(bytes) +
                " bytes reach beyond their allocation");
  }
  ask(kPointerBufferId, memory.buffer_id);
  context.call(doing, &DriverApi::ipc_get_memory, &memory.handle, base);
  memory.base = base;
  memory.size = size;
  memory.offset = address - base;
  return memory;
}

MappedMemory::MappedMemory(std::shared_ptr<const DeviceContext> context,
                           const ExportedMemory& memory, int owner)
    : context_(std::move(context)) {
  context_->call("mapping memory of rank " + std::to_string(owner), &DriverApi::ipc_open_memory,
                 &base_, memory.handle, kIpcLazyEnablePeerAccess);
}

MappedMemory::~MappedMemory() {
  context_->release(context_->api().ipc_close_memory, base_);
}

PinnedRange::PinnedRange(std::shared_ptr<const DeviceContext> context, void* memory,
                         std::size_t bytes)
    : context_(std::move(context)), memory_(memory) {
  const std::string doing = "pinning " + std::to_string(bytes) + " bytes of host memory";
  context_->call(doing, &DriverApi::host_register, memory, bytes,
                 kHostRegisterPortable | kHostRegisterMapped);
  try {
    context_->call(doing, &DriverApi::host_device_pointer, &address_, memory, 0U);
  } catch (...) {
    context_->release(context_->api().host_unregister, memory_);
    throw;
  }
}

PinnedRange::~PinnedRange() {
  context_->release(context_->api().host_unregister, memory_);
}

DevicePointer RegistrationCache::map(const std::shared_ptr<const DeviceContext>& context,
                                     const ExportedMemory& memory, int owner) {
  using Clock = std::chrono::steady_clock;
  const auto found = entries_.find({owner, memory.base});
  if (found != entries_.end() && is_same_allocation(found->second.memory, memory)) {
    ++hits_;
    return found->second.mapping->address_of(memory);
  }
  ++misses_;
  close_overlapping(memory, owner);
  const Clock::time_point begin = Clock::now();
  Entry entry = {memory, std::make_unique<MappedMemory>(context, memory, owner)};
  open_ns_ += static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
  const DevicePointer address = entry.mapping->address_of(memory);
  entries_.emplace(std::pair(owner, memory.base), std::move(entry));
  bytes_ += memory.size;
  count_ = entries_.size();
  return address;
}

/// Closes mappings of allocations that `owner` has freed, as another one lies where they were. CUDA
/// may refuse to open the new one before.
void RegistrationCache::close_overlapping(const ExportedMemory& memory, int owner) {
  auto entry = entries_.lower_bound({owner, memory.base});
  if (entry != entries_.begin()) {
    const auto before = std::prev(entry);
    const auto& [key, kept] = *before;
    if (key.first == owner && key.second + kept.memory.size > memory.base) entry = before;
  }
  while (entry != entries_.end() && entry->first.first == owner &&
         entry->first.second < memory.base + memory.size) {
    bytes_ -= entry->second.memory.size;
    entry = entries_.erase(entry);
  }
  count_ = entries_.size();
}

void RegistrationCache::clear() noexcept {
  entries_.clear();
  count_ = bytes_ = 0;
}

void RegistrationCache::make_room() noexcept {
  evicted_ += count_;
  clear();
}

StatsGroup RegistrationCache::stats() const {
  return {"registration_cache",
          {{"hits", hits_},
           {"misses", misses_},
           {"evicted_for_room", evicted_},
           {"entries", count_},
           {"bytes", bytes_},
           {"open_us", open_ns_ / 1000}}};
}

}  // namespace ronde::cuda
