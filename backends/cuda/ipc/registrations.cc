// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/ipc/registrations.h"

#include <chrono>
#include <string>

namespace ronde::cuda {

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

MappedMemory map_memory(const std::shared_ptr<const DeviceContext>& context,
                        const ExportedMemory& memory, int owner) {
  DevicePointer base = 0;
  context->call("mapping memory of rank " + std::to_string(owner), &DriverApi::ipc_open_memory,
                &base, memory.handle, kIpcLazyEnablePeerAccess);
  return {context, base};
}

DevicePointer RegistrationCache::map(const std::shared_ptr<const DeviceContext>& context,
                                     const ExportedMemory& memory, int owner) {
  using Clock = std::chrono::steady_clock;
  if (const auto found = entries_.find({owner, memory.base}); found != entries_.end()) {
    // Memory that was freed and allocated again at its address has another id. Handles are compared
    // as well: the ids of a process that takes the place of another may repeat.
    const auto& [known, mapping] = found->second;
    if (known.size == memory.size && known.buffer_id == memory.buffer_id &&
        known.handle.reserved == memory.handle.reserved) {
      ++hits_;
      return mapping.get() + memory.offset;
    }
  }
  ++misses_;
  // What its owner has freed, as this lies where it was: CUDA may refuse to open this before that
  // is closed.
  std::erase_if(entries_, [&](const auto& each) {
    const ExportedMemory& freed = each.second.memory;
    const bool overlaps = each.first.first == owner && freed.base < memory.base + memory.size &&
                          memory.base < freed.base + freed.size;
    if (overlaps) bytes_ -= freed.size;
    return overlaps;
  });
  count_ = entries_.size();
  const Clock::time_point begin = Clock::now();
  MappedMemory mapping = map_memory(context, memory, owner);
  open_ns_ += static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
  const DevicePointer address = mapping.get() + memory.offset;
  entries_.emplace(std::pair(owner, memory.base), Entry{memory, std::move(mapping)});
  bytes_ += memory.size;
  count_ = entries_.size();
  return address;
}

void RegistrationCache::clear() noexcept {
  entries_.clear();
  count_ = bytes_ = 0;
}

void RegistrationCache::make_room() noexcept {
  evicted_ += count_;
  clear();
}

void RegistrationCache::add_to(StatsGroup& group) const {
  group.counters.insert(group.counters.end(), {{"registration_hits", hits_},
                                               {"registration_misses", misses_},
                                               {"registration_evicted_for_room", evicted_},
                                               {"registration_entries", count_},
                                               {"registration_bytes", bytes_},
                                               {"registration_open_us", open_ns_ / 1000}});
}

}  // namespace ronde::cuda
