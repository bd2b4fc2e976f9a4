// SPDX-License-Identifier: Apache-2.0
// What the driver's functions do.
#include <fcntl.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backends/gpu/driver/memory.h"
#include "tests/support/fakes/fake_cuda_state.h"

namespace ronde::test::fake {
namespace {

DevicePointer address_of(void* pointer) {
  return reinterpret_cast<DevicePointer>(pointer);
}

/// Null where there is none. Negative `descriptor`: memory that nothing else shows. Whole blocks
/// begin where a block does, as in the driver.
void* map_memory(int descriptor, std::size_t bytes) {
  const std::size_t room = bytes % kBlockBytes == 0 ? kBlockBytes : 0;
  void* const reserved =
      mmap(nullptr, bytes + room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(reserved);
  const std::size_t before = room == 0 ? 0 : (room - address_of(begin) % room) % room;
  if (before > 0) munmap(begin, before);
  if (before < room) munmap(begin + before + bytes, room - before);
  const int flags = MAP_FIXED | (descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  void* const memory = mmap(begin + before, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

/// What the handle of memory holds: its number, and where another process finds it.
struct MemoryName {
  std::uint64_t buffer_id = 0;
  std::size_t bytes = 0;
  pid_t process = 0;
  int descriptor = -1;
};

/// Maps what another process has named. Its file is open there for as long as the memory lives.
Result open_foreign(const MemoryName& name, DevicePointer* mapped, Mapping& mapping) {
  const std::string path =
      "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return kInvalidHandle;
  mapping.bytes = name.bytes;
  *mapped = address_of(map_memory(descriptor, name.bytes));
  return close(descriptor), kSuccess;
}

/// Maps what this process has named, as if it were another one's.
Result open_own(State& s, const MemoryName& name, DevicePointer* mapped, Mapping& mapping) {
  const auto found =
      std::find_if(s.allocations.begin(), s.allocations.end(),
                   [&](const auto& each) { return each.second.buffer_id == name.buffer_id; });
  if (found == s.allocations.end()) return kInvalidHandle;  // its owner has freed it
  const Allocation& shown = found->second;
  mapping.bytes = shown.bytes;
  mapping.buffer_id = name.buffer_id;
  const int descriptor = s.options.mappings_show_memory ? shown.descriptor : -1;
  return *mapped = address_of(map_memory(descriptor, shown.bytes)), kSuccess;
}

FakeCuda::Action action_of(const StreamMemoryOperation& operation) {
  // The host writes words, too.
  const std::atomic_ref word(*reinterpret_cast<std::uint32_t*>(operation.address));
  const auto value = static_cast<std::uint32_t>(operation.value);
  if (operation.operation == kWriteWord) return {.run = [=] { word.store(value); }};
  return {.is_over = [=] { return static_cast<std::int32_t>(word.load() - value) >= 0; }};
}

void add_queries(Functions& functions) {
  define<"cuInit", Enter>(functions, [](State&, unsigned) { return kSuccess; });
  define<"cuDriverGetVersion", Enter>(
      functions, [](State& s, int* version) { return *version = s.options.version, kSuccess; });
  functions["cuGetErrorString"] = address(
      +[](Result, const char** text) -> Result { return *text = "the fake says so", kSuccess; });
  functions["cuGetErrorName"] = address(
      +[](Result, const char** text) -> Result { return *text = "CUDA_ERROR_FAKE", kSuccess; });
  define<"cuDeviceGetCount", Enter>(
      functions, [](State& s, int* count) { return *count = s.options.devices, kSuccess; });
  define<"cuDeviceGet", Enter>(functions, [](State& s, DeviceHandle* device, int index) {
    if (index < 0 || index >= s.options.devices) return kInvalidDevice;
    return *device = index, kSuccess;
  });
  define<"cuDeviceGetName", Enter>(functions, [](State&, char* name, int, DeviceHandle) {
    return std::strcpy(name, "Fake"), kSuccess;
  });
  define<"cuDeviceTotalMem_v2", Enter>(functions, [](State&, std::size_t* bytes, DeviceHandle) {
    return *bytes = std::size_t{1} << 30, kSuccess;
  });
  define<"cuDeviceGetUuid_v2", Enter>(functions, [](State&, Uuid* uuid, DeviceHandle device) {
    return uuid->bytes.fill(static_cast<unsigned char>(device + 1)), kSuccess;
  });
  define<"cuDeviceGetPCIBusId", Enter>(functions, [](State&, char* id, int, DeviceHandle device) {
    const std::string text = "0000:0" + std::to_string(device) + ":00.0";
    return std::strcpy(id, text.c_str()), kSuccess;
  });
  define<"cuDeviceGetAttribute", Enter>(
      functions, [](State&, int* value, int attribute, DeviceHandle) {
        *value = attribute == kAttributeComputeCapabilityMajor ? 9
                 : attribute == kAttributeMultiprocessorCount  ? 132
                                                               : 0;
        return kSuccess;
      });
}

void add_contexts(Functions& functions) {
  define<"cuDevicePrimaryCtxRetain", Enter>(
      functions, [](State& s, ContextHandle* context, DeviceHandle device) {
        ++s.retained.at(static_cast<std::size_t>(device));
        *context = reinterpret_cast<ContextHandle>(static_cast<std::uintptr_t>(device) + 1);
        return kSuccess;
      });
  define<"cuDevicePrimaryCtxRelease_v2", Enter>(functions, [](State& s, DeviceHandle device) {
    return --s.retained.at(static_cast<std::size_t>(device)), kSuccess;
  });
  define<"cuCtxPushCurrent_v2", Enter>(functions, [](State&, ContextHandle context) {
    return contexts().push_back(context), kSuccess;
  });
  define<"cuCtxPopCurrent_v2">(functions, [](State&, ContextHandle* context) {
    *context = contexts().back();
    return contexts().pop_back(), kSuccess;
  });
  define<"cuThreadExchangeStreamCaptureMode", Enter>(functions, [](State&, int* mode) {
    thread_local int own = 0;  // global
    return std::swap(own, *mode), kSuccess;
  });
  define<"cuStreamIsCapturing">(functions, [](State& s, StreamHandle stream, int* status) {
    constexpr int kActive = 1;
    if (stream == nullptr && s.default_is_unusable) return kCaptureImplicit;
    return *status = s.captured.contains(stream) ? kActive : kCaptureNone, kSuccess;
  });
  define<"cuCtxGetStreamPriorityRange">(functions, [](State&, int* least, int* greatest) {
    return *least = 0, *greatest = -5, kSuccess;
  });
}

void add_memory(Functions& functions) {
  define<"cuMemAlloc_v2">(functions, [](State& s, DevicePointer* memory, std::size_t bytes) {
    if (bytes == 0) return kInvalidValue;
    const int descriptor = memfd_create("fake device memory", MFD_CLOEXEC);
    if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
    *memory = address_of(map_memory(descriptor, bytes));
    if (*memory == 0) return kOutOfMemory;
    s.allocations[*memory] = {bytes, descriptor, ++s.last_number, s.options.memory_is_ipc_capable};
    return kSuccess;
  });
  define<"cuMemFree_v2">(functions, [](State& s, DevicePointer memory) {
    const auto found = s.allocations.find(memory);
    if (found == s.allocations.end()) return kInvalidValue;
    const bool is_mapped = std::any_of(s.mappings.begin(), s.mappings.end(), [&](const auto& each) {
      return each.second.buffer_id == found->second.buffer_id;
    });
    if (is_mapped && s.options.freeing_mapped_fails) return kInvalidValue;
    munmap(pointer_to(memory), found->second.bytes);
    close(found->second.descriptor);
    return s.allocations.erase(found), kSuccess;
  });
  define<"cuMemGetAddressRange_v2">(
      functions, [](State& s, DevicePointer* base, std::size_t* bytes, DevicePointer memory) {
        const auto found = holder_of(s.allocations, memory);
        if (found == s.allocations.end()) return kInvalidValue;
        *base = found->first;
        return *bytes = found->second.bytes, kSuccess;
      });
  define<"cuPointerGetAttribute">(
      functions, [](State& s, void* value, int attribute, DevicePointer memory) {
        const auto found = holder_of(s.allocations, memory);
        if (found == s.allocations.end()) return kInvalidValue;
        if (attribute == kPointerBufferId) {
          *static_cast<std::uint64_t*>(value) = found->second.buffer_id;
        } else if (attribute == kPointerIsLegacyIpcCapable) {
          *static_cast<int*>(value) = found->second.is_ipc_capable ? 1 : 0;
        } else {
          return kInvalidValue;
        }
        return kSuccess;
      });
}

void add_host_memory(Functions& functions) {
  define<"cuMemHostAlloc">(functions, [](State& s, void** memory, std::size_t bytes, unsigned) {
    *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return s.host_allocations[address_of(*memory)] = {bytes}, kSuccess;
  });
  define<"cuMemFreeHost">(functions, [](State& s, void* memory) {
    if (s.host_allocations.erase(address_of(memory)) == 0) return kInvalidValue;
    return std::free(memory), kSuccess;
  });
  define<"cuMemHostRegister_v2">(functions,
                                 [](State& s, void* memory, std::size_t bytes, unsigned) {
                                   const DevicePointer begin = address_of(memory);
                                   for (const auto& [other, range] : s.host_registrations) {
                                     if (begin < other + range.bytes && other < begin + bytes)
                                       return kHostMemoryAlreadyRegistered;
                                   }
                                   return s.host_registrations[begin] = {bytes}, kSuccess;
                                 });
  define<"cuMemHostGetDevicePointer_v2">(functions,
                                         [](State&, DevicePointer* device, void* memory, unsigned) {
                                           return *device = address_of(memory), kSuccess;
                                         });
  define<"cuMemHostUnregister">(functions, [](State& s, void* memory) {
    return s.host_registrations.erase(address_of(memory)) == 1 ? kSuccess : kNotRegistered;
  });
}

void add_ipc(Functions& functions) {
  define<"cuIpcGetMemHandle">(functions, [](State& s, IpcMemHandle* handle, DevicePointer memory) {
    const auto found = holder_of(s.allocations, memory);
    if (found == s.allocations.end() || !found->second.is_ipc_capable) return kInvalidValue;
    const Allocation& shown = found->second;
    const MemoryName name = {shown.buffer_id, shown.bytes, getpid(), shown.descriptor};
    static_assert(sizeof name <= sizeof handle->reserved);
    std::memcpy(handle->reserved.data(), &name, sizeof name);
    return kSuccess;
  });
  define<"cuIpcOpenMemHandle_v2">(
      functions, [](State& s, DevicePointer* mapped, IpcMemHandle handle, unsigned) {
        const auto open = std::find_if(s.mappings.begin(), s.mappings.end(), [&](const auto& each) {
          return each.second.handle == handle.reserved && each.second.device == current_device();
        });
        if (open != s.mappings.end())
          return *mapped = open->first, ++open->second.openings, kSuccess;
        MemoryName name;
        std::memcpy(&name, handle.reserved.data(), sizeof name);
        const bool is_own = name.process == getpid();
        if (is_own == s.options.processes_share_memory) return kInvalidHandle;
        Mapping mapping{.handle = handle.reserved, .device = current_device()};
        const Result result =
            is_own ? open_own(s, name, mapped, mapping) : open_foreign(name, mapped, mapping);
        if (result != kSuccess) return result;
        if (*mapped == 0) return kMapFailed;
        return s.mappings[*mapped] = mapping, kSuccess;
      });
  define<"cuIpcCloseMemHandle">(functions, [](State& s, DevicePointer mapped) {
    const auto found = s.mappings.find(mapped);
    if (found == s.mappings.end()) return kInvalidValue;
    if (--found->second.openings > 0) return kSuccess;
    munmap(pointer_to(mapped), found->second.bytes);
    return s.mappings.erase(found), kSuccess;
  });
}

void add_streams(Functions& functions) {
  define<"cuStreamCreateWithPriority">(
      functions, [](State& s, StreamHandle* stream, unsigned, int) {
        *stream = s.new_handle<StreamHandle>();
        const auto held = s.held_devices.find(current_device());
        s.streams[*stream].is_held = held != s.held_devices.end() && held->second-- <= 0;
        return kSuccess;
      });
  // As in the driver: what is queued runs in its order, each wait included, and the call does not
  // wait for it.
  define<"cuStreamDestroy_v2">(functions, [](State& s, StreamHandle handle) {
    Stream* const stream = s.find_stream(handle);
    if (stream == nullptr) return kInvalidHandle;
    stream->is_destroyed = true;
    return s.run(), kSuccess;
  });
  define<"cuStreamQuery">(functions, [](State& s, StreamHandle handle) {
    const Stream* const stream = s.find_stream(handle);
    if (stream == nullptr) return kInvalidHandle;
    s.run();
    return stream->queue.empty() ? kSuccess : kNotReady;
  });
  define<"cuStreamSynchronize">(functions, [](State& s, StreamHandle stream) {
    return s.wait_until([&] { return s.streams.at(stream).queue.empty(); });
  });
  define<"cuStreamWaitEvent">(functions, [](State& s, StreamHandle stream, EventHandle event,
                                            unsigned) {
    const auto found = s.events.find(event);
    if (found == s.events.end()) return kInvalidHandle;
    return s.enqueue(stream, Work{.waits_for = found->second, .until = found->second->recorded});
  });
  define<"cuStreamBatchMemOp_v2">(functions, [](State& s, StreamHandle stream, unsigned count,
                                                StreamMemoryOperation* operations, unsigned) {
    for (unsigned i = 0; i < count; ++i) {
      if (operations[i].operation == kWriteWord && !s.options.written_words_show) continue;
      const Result result = s.enqueue(stream, action_of(operations[i]));
      if (result != kSuccess) return result;
    }
    return kSuccess;
  });
  define<"cuMemcpyAsync">(functions, [](State& s, DevicePointer to, DevicePointer from,
                                        std::size_t bytes, StreamHandle stream) {
    FakeCuda::Action copy = {.run = [=] { std::memmove(pointer_to(to), pointer_to(from), bytes); }};
    if (!s.is_device_accessible(from)) {
      // Pageable memory has been read when the call returns.
      const std::vector<char> values(pointer_to(from), pointer_to(from) + bytes);
      copy.run = [=] { std::memcpy(pointer_to(to), values.data(), bytes); };
    }
    return s.enqueue(stream, std::move(copy));
  });
  define<"cuMemsetD8Async">(functions, [](State& s, DevicePointer to, unsigned char value,
                                          std::size_t bytes, StreamHandle stream) {
    return s.enqueue(stream, {.run = [=] { std::memset(pointer_to(to), value, bytes); }});
  });
}

void add_events(Functions& functions) {
  define<"cuEventCreate">(functions, [](State& s, EventHandle* event, unsigned) {
    *event = s.new_handle<EventHandle>();
    s.events[*event] = std::make_shared<EventState>();
    return kSuccess;
  });
  define<"cuEventDestroy_v2">(functions, [](State& s, EventHandle event) {
    return s.events.erase(event) == 1 ? kSuccess : kInvalidHandle;
  });
  define<"cuEventRecord">(functions, [](State& s, EventHandle event, StreamHandle stream) {
    const auto found = s.events.find(event);
    if (found == s.events.end()) return kInvalidHandle;
    const auto state = found->second;
    const std::uint64_t number = ++state->recorded;
    return s.enqueue(stream, {.run = [=] { state->completed = number; }});
  });
  define<"cuEventQuery">(functions, [](State& s, EventHandle event) {
    const auto found = s.events.find(event);
    if (found == s.events.end()) return kInvalidHandle;
    s.run();
    return found->second->completed == found->second->recorded ? kSuccess : kNotReady;
  });
}

void add_kernels(Functions& functions) {
  define<"cuModuleLoadData">(functions, [](State& s, ModuleHandle* module, const void* image) {
    if (image == nullptr) return kInvalidValue;
    *module = s.new_handle<ModuleHandle>();
    return s.modules.insert(*module), kSuccess;
  });
  define<"cuModuleUnload">(functions, [](State& s, ModuleHandle module) {
    return s.modules.erase(module) == 1 ? kSuccess : kInvalidHandle;
  });
  define<"cuModuleGetFunction">(
      functions, [](State& s, FunctionHandle* function, ModuleHandle module, const char* name) {
        if (!s.modules.contains(module)) return kInvalidHandle;
        if (!s.kernels.contains(name)) return kNotFound;
        *function = s.new_handle<FunctionHandle>();
        return s.functions[*function] = name, kSuccess;
      });
  define<"cuOccupancyMaxActiveBlocksPerMultiprocessor">(
      functions, [](State& s, int* blocks, FunctionHandle function, int, std::size_t) {
        const auto found = s.functions.find(function);
        if (found == s.functions.end()) return kInvalidHandle;
        return *blocks = found->second.starts_with("ronde_move") ? 4 : 3, kSuccess;
      });
  define<"cuFuncLoad">(functions, [](State& s, FunctionHandle function) {
    return s.functions.contains(function) ? kSuccess : kInvalidHandle;
  });
  define<"cuLaunchKernel">(functions, [](State& s, FunctionHandle function, unsigned blocks,
                                         unsigned, unsigned, unsigned threads, unsigned, unsigned,
                                         unsigned, StreamHandle stream, void** arguments, void**) {
    const auto found = s.functions.find(function);
    if (found == s.functions.end()) return kInvalidHandle;
    if (blocks == 0 || threads == 0 || threads > 1024) return kInvalidValue;
    return s.enqueue(stream, s.kernels.at(found->second)({blocks, threads, arguments}));
  });
}

}  // namespace

void add_driver(Functions& functions) {
  add_queries(functions);
  add_contexts(functions);
  add_memory(functions);
  add_host_memory(functions);
  add_ipc(functions);
  add_streams(functions);
  add_events(functions);
  add_kernels(functions);
}

}  // namespace ronde::test::fake
