// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "backends/gpu/driver/memory.h"
#include "core/src/base/system.h"
#include "tests/support/fakes/fake_cuda_state.h"

namespace ronde::test::fake {
namespace {

Memory unmapped_last(void* memory, std::size_t bytes, UniqueFd file = {}) {
  if (memory == MAP_FAILED) return nullptr;
  return {memory, [bytes, file = std::move(file)](void* mapped) { munmap(mapped, bytes); }};
}

/// Null where there is none. Without a file it is memory that nothing else shows. Whole blocks
/// begin where a block does, as in the driver.
Memory map_memory(UniqueFd file, std::size_t bytes) {
  const std::size_t room = bytes % kBlockBytes == 0 ? kBlockBytes : 0;
  void* const reserved =
      mmap(nullptr, bytes + room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(reserved);
  const std::size_t before = room == 0 ? 0 : (room - address_of(begin) % room) % room;
  if (before > 0) munmap(begin, before);
  if (before < room) munmap(begin + before + bytes, room - before);
  const int flags = MAP_FIXED | (file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
  void* const memory = mmap(begin + before, bytes, PROT_READ | PROT_WRITE, flags, file.get(), 0);
  return unmapped_last(memory, bytes, std::move(file));
}

/// What a mapping of a file shows, at one more address. It is reserved first: ThreadSanitizer does
/// not see mremap(), and would take this memory for what was there before.
Memory map_again(void* memory, std::size_t bytes) {
  void* const reserved = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  return unmapped_last(mremap(memory, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, reserved), bytes);
}

/// Names the file that is mapped from this address on.
std::string file_at(DevicePointer address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    DevicePointer begin = 0;
    int behind = 0;
    std::sscanf(line.c_str(), "%llx-%*s %*s %*s %n", &begin, &behind);
    if (begin == address) return line.substr(static_cast<std::size_t>(behind));
  }
  return {};
}

/// What the handle of memory holds: its number, and where another process finds it.
struct MemoryName {
  std::uint64_t buffer_id = 0;
  std::size_t bytes = 0;
  pid_t process = 0;
  int descriptor = -1;
};

/// Maps what another process has named, or this one, as if it were another; null if its owner has
/// freed it. Its file is open there for as long as the memory lives.
Memory open_named(const State& s, const MemoryName& name) {
  if (name.process == getpid()) {
    const auto found = std::ranges::find(s.allocations, name.buffer_id,
                                         [](const auto& each) { return each.second.buffer_id; });
    if (found == s.allocations.end()) return nullptr;
    if (!s.options.mappings_show_memory) return map_memory({}, name.bytes);
    if (kStreamsAreFibers) return found->second.memory;
  }
  const std::string path =
      "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.descriptor);
  UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  return file ? map_memory(std::move(file), name.bytes) : nullptr;
}

/// A word that is far ahead was written by its host, to end a wait that has become useless: what
/// the stream does then needs no order.
Work work_of(const StreamMemoryOperation& operation, Fiber& fiber) {
  const std::atomic_ref word(*reinterpret_cast<std::uint32_t*>(operation.address));
  const auto value = static_cast<std::uint32_t>(operation.value);
  if (operation.operation == kWriteWord) return once([=] { word.store(value); });
  return [=, &fiber] {
    const auto ahead = static_cast<std::int32_t>(word.load() - value);
    if (ahead > 1 << 29) fiber.hide();
    return ahead >= 0;
  };
}

void add_queries(Functions& functions) {
  define<"cuInit", Enter>(functions, [](State&, unsigned) { return kSuccess; });
  define<"cuDriverGetVersion", Enter>(
      functions, [](State&, int* version) { return *version = 13000, kSuccess; });
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
    return contexts.push_back(context), kSuccess;
  });
  define<"cuCtxPopCurrent_v2">(functions, [](State&, ContextHandle* context) {
    *context = contexts.back();
    return contexts.pop_back(), kSuccess;
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
    UniqueFd file(memfd_create("fake device memory", MFD_CLOEXEC));
    const int descriptor = file.get();
    if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
    const Memory mapped = map_memory(std::move(file), bytes);
    if (mapped == nullptr) return kOutOfMemory;
    *memory = address_of(mapped.get());
    s.allocations[*memory] = {mapped, bytes, descriptor, ++s.last_number,
                              s.options.memory_is_ipc_capable};
    return kSuccess;
  });
  define<"cuMemFree_v2">(functions, [](State& s, DevicePointer memory) {
    const auto found = s.allocations.find(memory);
    if (found == s.allocations.end()) return kInvalidValue;
    const bool is_mapped = std::any_of(s.mappings.begin(), s.mappings.end(), [&](const auto& each) {
      return each.second.buffer_id == found->second.buffer_id;
    });
    if (is_mapped && s.options.freeing_mapped_fails) return kInvalidValue;
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
    show();  // ThreadSanitizer reports a stream that still uses it
    std::free(memory);
    return hide(), kSuccess;
  });
  define<"cuMemHostRegister_v2">(
      functions, [](State& s, void* memory, std::size_t bytes, unsigned) {
        const DevicePointer begin = address_of(memory);
        for (const auto& [other, range] : s.host_registrations) {
          if (begin < other + range.bytes && other < begin + bytes)
            return kHostMemoryAlreadyRegistered;
        }
        // Ranks have a file that they share at other addresses; their devices have it at one.
        const std::string file = file_at(begin);
        if (file.empty()) return kInvalidValue;  // a mapping is registered from its begin
        Memory& on_device = s.files[file];
        if (on_device == nullptr) on_device = map_again(memory, bytes);
        if (on_device == nullptr) return kInvalidValue;
        return s.host_registrations[begin] = {bytes, on_device}, kSuccess;
      });
  define<"cuMemHostGetDevicePointer_v2">(
      functions, [](State& s, DevicePointer* device, void* memory, unsigned) {
        const auto found = s.host_registrations.find(address_of(memory));
        if (found == s.host_registrations.end()) return kInvalidValue;
        return *device = address_of(found->second.on_device.get()), kSuccess;
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
          return each.second.handle == handle.reserved &&
                 (kStreamsAreFibers || each.second.device == current_device());
        });
        if (open != s.mappings.end())
          return *mapped = open->first, ++open->second.openings, kSuccess;
        MemoryName name;
        std::memcpy(&name, handle.reserved.data(), sizeof name);
        const bool is_own = name.process == getpid();
        if (is_own == s.options.processes_share_memory) return kInvalidHandle;
        const Memory memory = open_named(s, name);
        if (memory == nullptr) return kInvalidHandle;
        *mapped = address_of(memory.get());
        s.mappings[*mapped] = {memory, name.bytes, is_own ? name.buffer_id : 0, handle.reserved,
                               current_device()};
        return kSuccess;
      });
  define<"cuIpcCloseMemHandle">(functions, [](State& s, DevicePointer mapped) {
    const auto found = s.mappings.find(mapped);
    if (found == s.mappings.end()) return kInvalidValue;
    if (--found->second.openings > 0) return kSuccess;
    return s.mappings.erase(found), kSuccess;
  });
}

void add_streams(Functions& functions) {
  define<"cuStreamCreateWithPriority">(
      functions, [](State& s, StreamHandle* stream, unsigned, int) {
        *stream = s.new_handle<StreamHandle>();
        s.streams[*stream].is_held = s.held_devices.contains(current_device());
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
    if (!stream->queue.empty()) return kNotReady;
    return stream->fiber.order_before_caller(), kSuccess;
  });
  define<"cuStreamSynchronize">(functions, [](State& s, StreamHandle handle) {
    const Stream& stream = s.streams.at(handle);
    s.wait_until([&] { return stream.queue.empty(); });
    return stream.fiber.order_before_caller(), kSuccess;
  });
  define<"cuStreamWaitEvent">(
      functions, [](State& s, StreamHandle stream, EventHandle event, unsigned) {
        const auto found = s.events.find(event);
        if (found == s.events.end()) return kInvalidHandle;
        return s.enqueue(stream, [reached = found->second] { return !reached || *reached; });
      });
  define<"cuStreamBatchMemOp_v2">(functions, [](State& s, StreamHandle handle, unsigned count,
                                                StreamMemoryOperation* operations, unsigned) {
    Stream* const stream = s.find_stream(handle);
    if (stream == nullptr) return kInvalidHandle;
    for (unsigned i = 0; i < count; ++i) {
      if (operations[i].operation == kWriteWord && !s.options.written_words_show) continue;
      s.enqueue(handle, work_of(operations[i], stream->fiber));
    }
    return kSuccess;
  });
  define<"cuMemcpyAsync">(functions, [](State& s, DevicePointer to, DevicePointer from,
                                        std::size_t bytes, StreamHandle stream) {
    if (s.is_device_accessible(from)) {
      return s.enqueue(stream, once([=] { std::memmove(writable(to), pointer_to(from), bytes); }));
    }
    // Pageable memory has been read when the call returns.
    const auto* const begin = static_cast<const char*>(pointer_to(from));
    const std::vector<char> values(begin, begin + bytes);
    return s.enqueue(stream, once([=] { std::memcpy(writable(to), values.data(), bytes); }));
  });
  define<"cuMemsetD8Async">(functions, [](State& s, DevicePointer to, unsigned char value,
                                          std::size_t bytes, StreamHandle stream) {
    return s.enqueue(stream, once([=] { std::memset(writable(to), value, bytes); }));
  });
}

void add_events(Functions& functions) {
  define<"cuEventCreate">(functions, [](State& s, EventHandle* event, unsigned) {
    return s.events[*event = s.new_handle<EventHandle>()] = nullptr, kSuccess;
  });
  define<"cuEventDestroy_v2">(functions, [](State& s, EventHandle event) {
    return s.events.erase(event) == 1 ? kSuccess : kInvalidHandle;
  });
  define<"cuEventRecord">(functions, [](State& s, EventHandle event, StreamHandle stream) {
    const auto found = s.events.find(event);
    if (found == s.events.end()) return kInvalidHandle;
    const Recording reached = found->second = std::make_shared<std::atomic<bool>>();
    return s.enqueue(stream, once([=] { *reached = true; }));
  });
  define<"cuEventQuery">(functions, [](State& s, EventHandle event) {
    const auto found = s.events.find(event);
    if (found == s.events.end()) return kInvalidHandle;
    s.run();
    const Recording& reached = found->second;
    if (reached == nullptr) return kSuccess;
    return *reached ? acquire(reached.get()), kSuccess : kNotReady;
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
    return s.enqueue(stream, once(s.kernels.at(found->second)({blocks, threads, arguments})));
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
