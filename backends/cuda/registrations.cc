// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/registrations.h"

#include <string>
#include <utility>

namespace ronde::cuda {

std::optional<ExportedMemory> export_memory(const DeviceContext& context, DevicePointer address,
                                            std::size_t bytes) {
  const DriverApi& api = context.api();
  const Current current(context);
  const std::string doing = "exporting memory of GPU " + std::to_string(context.index());
  int is_capable = 0;
  check(api, doing, api.pointer_attribute, static_cast<void*>(&is_capable),
        kPointerIsLegacyIpcCapable, address);
  if (is_capable == 0) return std::nullopt;
  ExportedMemory memory{.bytes = bytes};
  DevicePointer base = 0;
  std::size_t size = 0;
  check(api, doing, api.address_range, &base, &size, address);
  if (address + bytes > base + size) {
    throw Error("CUDA failed while " + doing + ": the " + std::to_string(bytes) +
                " bytes reach beyond their allocation");
  }
  check(api, doing, api.pointer_attribute, static_cast<void*>(&memory.buffer_id), kPointerBufferId,
        address);
  check(api, doing, api.ipc_get_memory, &memory.handle, base);
  memory.base = base;
  memory.size = size;
  memory.offset = address - base;
  return memory;
}

MappedMemory::MappedMemory(std::shared_ptr<const DeviceContext> context,
                           const ExportedMemory& memory, int owner)
    : context_(std::move(context)) {
  const Current current(*context_);
  check(context_->api(), "mapping memory of rank " + std::to_string(owner),
        context_->api().ipc_open_memory, &base_, memory.handle, kIpcLazyEnablePeerAccess);
}

MappedMemory::~MappedMemory() {
  context_->release(context_->api().ipc_close_memory, base_);
}

std::shared_ptr<MappedMemory> map_memory(RegistrationCache& cache,
                                         const std::shared_ptr<const DeviceContext>& context,
                                         const ExportedMemory& memory, int owner) {
  // The handle as well as the id: either may repeat where a process ends and another has its place.
  std::string identity(memory.handle.reserved.data(), memory.handle.reserved.size());
  identity.append(reinterpret_cast<const char*>(&memory.buffer_id), sizeof(memory.buffer_id));
  const Region region{.owner = owner,
                      .base = memory.base,
                      .bytes = static_cast<std::size_t>(memory.size),
                      .identity = std::move(identity)};
  const auto registration =
      cache.get(region, [&] { return std::make_shared<MappedMemory>(context, memory, owner); });
  return std::static_pointer_cast<MappedMemory>(registration);
}

PinnedRange::PinnedRange(std::shared_ptr<const DeviceContext> context, void* memory,
                         std::size_t bytes)
    : context_(std::move(context)), memory_(memory) {
  const DriverApi& api = context_->api();
  const std::string doing = "pinning " + std::to_string(bytes) + " bytes of host memory";
  const Current current(*context_);
  check(api, doing, api.host_register, memory, bytes, kHostRegisterPortable | kHostRegisterMapped);
  const Result result = api.host_device_pointer(&address_, memory, 0U);
  if (result == kSuccess) return;
  context_->release(api.host_unregister, memory_);
  throw DriverError(api, api.host_device_pointer.symbol(), result, doing);
}

PinnedRange::~PinnedRange() {
  context_->release(context_->api().host_unregister, memory_);
}

}  // namespace ronde::cuda
