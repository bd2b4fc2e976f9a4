// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "fake_cuda_state.h"

namespace ronde::test::fake {
namespace {

DevicePointer address_of(void* pointer) {
  return reinterpret_cast<DevicePointer>(pointer);
}

void* map_memory(int descriptor, std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void* other_memory(std::size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

void add_memory(Symbols& symbols) {
  symbols["cuMemAlloc_v2"] = at(+[](DevicePointer* address, std::size_t bytes) {
    return call_in_context("cuMemAlloc_v2", [&](State& s, Lock&) {
      if (bytes == 0) return kInvalidValue;
      const int descriptor = memfd_create("fake device memory", MFD_CLOEXEC);
      void* const memory = ftruncate(descriptor, static_cast<off_t>(bytes)) == 0
                               ? map_memory(descriptor, bytes)
                               : nullptr;
      if (memory == nullptr) return kOutOfMemory;
      *address = address_of(memory);
      s.allocations[*address] = {descriptor, bytes, ++s.last_number, current_device(),
                                 s.options.memory_is_ipc_capable};
      return kSuccess;
    });
  });
  symbols["cuMemFree_v2"] = at(+[](DevicePointer address) {
    return call_in_context("cuMemFree_v2", [&](State& s, Lock&) {
      const auto found = s.allocations.find(address);
      if (found == s.allocations.end()) return kInvalidValue;
      const bool is_mapped =
          std::any_of(s.mapped_buffers.begin(), s.mapped_buffers.end(),
                      [&](const auto& each) { return each.second == found->second.buffer_id; });
      if (is_mapped && s.options.freeing_mapped_fails) return kInvalidValue;
      munmap(pointer_to(address), found->second.bytes);
      close(found->second.descriptor);
      s.allocations.erase(found);
      return kSuccess;
    });
  });
  symbols["cuMemGetAddressRange_v2"] =
      at(+[](DevicePointer* base, std::size_t* bytes, DevicePointer address) {
        return call_in_context("cuMemGetAddressRange_v2", [&](State& s, Lock&) {
          const auto found = s.allocation_at(address);
          if (found == s.allocations.end()) return kInvalidValue;
          *base = found->first;
          return *bytes = found->second.bytes, kSuccess;
        });
      });
  symbols["cuPointerGetAttribute"] = at(+[](void* value, int attribute, DevicePointer address) {
    return call_in_context("cuPointerGetAttribute", [&](State& s, Lock&) {
      const auto found = s.allocation_at(address);
      if (found == s.allocations.end()) return kInvalidValue;
      if (attribute == kPointerBufferId) {
        *static_cast<std::uint64_t*>(value) = found->second.buffer_id;
      } else if (attribute == kPointerDeviceOrdinal) {
        *static_cast<int*>(value) = found->second.device;
      } else if (attribute == kPointerIsLegacyIpcCapable) {
        *static_cast<int*>(value) = found->second.is_ipc_capable ? 1 : 0;
      } else {
        return kInvalidValue;
      }
      return kSuccess;
    });
  });
}

void add_host_memory(Symbols& symbols) {
  symbols["cuMemHostAlloc"] = at(+[](void** memory, std::size_t bytes, unsigned) {
    return call_in_context("cuMemHostAlloc", [&](State& s, Lock&) {
      *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
      return s.host_allocations[static_cast<char*>(*memory)] = bytes, kSuccess;
    });
  });
  symbols["cuMemFreeHost"] = at(+[](void* memory) {
    return call_in_context("cuMemFreeHost", [&](State& s, Lock&) {
      if (s.host_allocations.erase(static_cast<char*>(memory)) == 0) return kInvalidValue;
      return std::free(memory), kSuccess;
    });
  });
  symbols["cuMemHostRegister_v2"] = at(+[](void* memory, std::size_t bytes, unsigned) {
    return call_in_context("cuMemHostRegister_v2", [&](State& s, Lock&) {
      char* const begin = static_cast<char*>(memory);
      for (const auto& [other, size] : s.host_registrations) {
        if (begin < other + size && other < begin + bytes) return kHostMemoryAlreadyRegistered;
      }
      return s.host_registrations[begin] = bytes, kSuccess;
    });
  });
  symbols["cuMemHostGetDevicePointer_v2"] = at(+[](DevicePointer* address, void* memory, unsigned) {
    return call_in_context("cuMemHostGetDevicePointer_v2",
                           [&](State&, Lock&) { return *address = address_of(memory), kSuccess; });
  });
  symbols["cuMemHostUnregister"] = at(+[](void* memory) {
    return call_in_context("cuMemHostUnregister", [&](State& s, Lock&) {
      const bool known = s.host_registrations.erase(static_cast<char*>(memory)) == 1;
      return known ? kSuccess : kNotRegistered;
    });
  });
}

void add_ipc(Symbols& symbols) {
  symbols["cuIpcGetMemHandle"] = at(+[](IpcMemHandle* handle, DevicePointer address) {
    return call_in_context("cuIpcGetMemHandle", [&](State& s, Lock&) {
      const auto found = s.allocation_at(address);
      if (found == s.allocations.end() || !found->second.is_ipc_capable) return kInvalidValue;
      *handle = {};
      std::memcpy(handle->reserved.data(), &found->second.buffer_id, sizeof(std::uint64_t));
      return kSuccess;
    });
  });
  symbols["cuIpcOpenMemHandle_v2"] = at(+[](DevicePointer* address, IpcMemHandle handle, unsigned) {
    return call_in_context("cuIpcOpenMemHandle_v2", [&](State& s, Lock&) {
      std::uint64_t id = 0;
      std::memcpy(&id, handle.reserved.data(), sizeof(id));
      for (const auto& [base, allocation] : s.allocations) {
        if (allocation.buffer_id != id) continue;
        const bool is_reached =
            s.options.peers_reach_each_other || allocation.device == current_device();
        if (!is_reached) return kPeerAccessUnsupported;
        void* const memory = s.options.mappings_show_memory
                                 ? map_memory(allocation.descriptor, allocation.bytes)
                                 : other_memory(allocation.bytes);
        if (memory == nullptr) return kMapFailed;
        *address = address_of(memory);
        s.mapped_buffers[*address] = id;
        return s.mappings[*address] = allocation.bytes, kSuccess;
      }
      return kInvalidHandle;  // its owner has freed it
    });
  });
  symbols["cuIpcCloseMemHandle"] = at(+[](DevicePointer address) {
    return call_in_context("cuIpcCloseMemHandle", [&](State& s, Lock&) {
      const auto found = s.mappings.find(address);
      if (found == s.mappings.end()) return kInvalidValue;
      munmap(pointer_to(address), found->second);
      s.mapped_buffers.erase(address);
      return s.mappings.erase(found), kSuccess;
    });
  });
  symbols["cuIpcGetEventHandle"] = at(+[](IpcEventHandle* handle, EventHandle event) {
    return call_in_context("cuIpcGetEventHandle", [&](State& s, Lock&) {
      const auto found = s.events.find(event);
      if (found == s.events.end()) return kInvalidHandle;
      *handle = {};
      std::memcpy(handle->reserved.data(), &found->second->number, sizeof(std::uint64_t));
      return s.shared_events[found->second->number] = found->second, kSuccess;
    });
  });
  symbols["cuIpcOpenEventHandle"] = at(+[](EventHandle* event, IpcEventHandle handle) {
    return call_in_context("cuIpcOpenEventHandle", [&](State& s, Lock&) {
      std::uint64_t number = 0;
      std::memcpy(&number, handle.reserved.data(), sizeof(number));
      const auto state = s.shared_events[number].lock();
      if (!state) return kInvalidHandle;
      *event = s.new_handle<EventHandle>();
      return s.events[*event] = state, kSuccess;
    });
  });
}

}  // namespace ronde::test::fake
