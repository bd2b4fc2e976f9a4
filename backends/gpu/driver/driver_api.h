// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/gpu/driver/device_query.h"
#include "ronde/error.h"

namespace ronde::cuda {

// Declarations of cuda.h, as in device_query.h.

using DevicePointer = unsigned long long;  ///< CUdeviceptr
struct ContextTag;
struct StreamTag;
struct EventTag;
struct ModuleTag;
struct FunctionTag;
using ContextHandle = ContextTag*;
using StreamHandle = StreamTag*;
using EventHandle = EventTag*;
using ModuleHandle = ModuleTag*;
using FunctionHandle = FunctionTag*;

struct IpcMemHandle {
  std::array<char, 64> reserved;
};

/// CUstreamBatchMemOpParams: a 32-bit word that a stream writes or waits for. Without flags, writes
/// queued before are visible to all before the word is, and a wait ends when the word minus the
/// value, as a signed 32-bit number, is not negative.
struct StreamMemoryOperation {
  unsigned operation = 0;
  DevicePointer address = 0;
  std::uint64_t value = 0;  ///< the lower half counts
  unsigned flags = 0;
  DevicePointer alias = 0;  ///< the driver's
  std::uint64_t rest = 0;
};
/// CUstreamBatchMemOpType
constexpr unsigned kWaitForWord = 1;
constexpr unsigned kWriteWord = 2;

/// CUresult, the values that Ronde distinguishes.
constexpr Result kOutOfMemory = 2;
constexpr Result kDeinitialized = 4;
constexpr Result kNotReady = 600;
constexpr Result kCaptureImplicit = 906;

constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kIpcLazyEnablePeerAccess = 1;
constexpr unsigned kHostRegisterPortable = 1;  ///< also that of cuMemHostAlloc
constexpr unsigned kHostRegisterMapped = 2;

/// CUstreamCaptureMode
constexpr int kCaptureRelaxed = 2;

/// CUstreamCaptureStatus
constexpr int kCaptureNone = 0;

/// CU_STREAM_PER_THREAD
constexpr std::uintptr_t kStreamPerThread = 2;

/// CUdevice_attribute
constexpr int kAttributeMultiprocessorCount = 16;
constexpr int kAttributeComputeCapabilityMajor = 75;
constexpr int kAttributeComputeCapabilityMinor = 76;

/// CUpointer_attribute
constexpr int kPointerBufferId = 7;
constexpr int kPointerIsLegacyIpcCapable = 10;

/// The functions of the CUDA driver that Ronde calls. Ronde uses the driver and not the runtime:
/// its functions keep their meaning between versions, the library comes with the kernel module, and
/// a process has one of it, whatever runtimes it has. They share a device's primary context.
///
/// Thread-safety: full, as the driver's.
struct DriverApi : DeviceQueryApi {
  template <typename... Arguments>
  using Call = vendor::Entry<Result, Arguments...>;

  Call<int*, int, DeviceHandle> device_attribute{*this, "cuDeviceGetAttribute"};

  Call<ContextHandle*, DeviceHandle> primary_context_retain{*this, "cuDevicePrimaryCtxRetain"};
  Call<DeviceHandle> primary_context_release{*this, "cuDevicePrimaryCtxRelease_v2"};
  Call<ContextHandle> context_push{*this, "cuCtxPushCurrent_v2"};
  Call<ContextHandle*> context_pop{*this, "cuCtxPopCurrent_v2"};
  Call<int*> exchange_capture_mode{*this, "cuThreadExchangeStreamCaptureMode"};
  Call<StreamHandle, int*> stream_is_capturing{*this, "cuStreamIsCapturing"};

  Call<DevicePointer*, std::size_t> allocate{*this, "cuMemAlloc_v2"};
  Call<DevicePointer> free{*this, "cuMemFree_v2"};
  Call<void**, std::size_t, unsigned> host_allocate{*this, "cuMemHostAlloc"};
  Call<void*> host_free{*this, "cuMemFreeHost"};
  Call<void*, std::size_t, unsigned> host_register{*this, "cuMemHostRegister_v2"};
  Call<DevicePointer*, void*, unsigned> host_device_pointer{*this, "cuMemHostGetDevicePointer_v2"};
  Call<void*> host_unregister{*this, "cuMemHostUnregister"};
  Call<DevicePointer*, std::size_t*, DevicePointer> address_range{*this, "cuMemGetAddressRange_v2"};
  Call<void*, int, DevicePointer> pointer_attribute{*this, "cuPointerGetAttribute"};

  /// Copies between any two kinds of memory, which it distinguishes by address.
  Call<DevicePointer, DevicePointer, std::size_t, StreamHandle> copy{*this, "cuMemcpyAsync"};
  Call<DevicePointer, unsigned char, std::size_t, StreamHandle> fill{*this, "cuMemsetD8Async"};

  Call<StreamHandle*, unsigned, int> stream_create{*this, "cuStreamCreateWithPriority"};
  Call<StreamHandle> stream_destroy{*this, "cuStreamDestroy_v2"};
  Call<StreamHandle> stream_query{*this, "cuStreamQuery"};
  Call<StreamHandle> stream_synchronize{*this, "cuStreamSynchronize"};
  Call<StreamHandle, EventHandle, unsigned> stream_wait_event{*this, "cuStreamWaitEvent"};
  Call<StreamHandle, unsigned, StreamMemoryOperation*, unsigned> stream_memory_operations{
      *this, "cuStreamBatchMemOp_v2"};
  Call<int*, int*> stream_priority_range{*this, "cuCtxGetStreamPriorityRange"};

  Call<EventHandle*, unsigned> event_create{*this, "cuEventCreate"};
  Call<EventHandle> event_destroy{*this, "cuEventDestroy_v2"};
  Call<EventHandle, StreamHandle> event_record{*this, "cuEventRecord"};
  Call<EventHandle> event_query{*this, "cuEventQuery"};

  Call<IpcMemHandle*, DevicePointer> ipc_get_memory{*this, "cuIpcGetMemHandle"};
  Call<DevicePointer*, IpcMemHandle, unsigned> ipc_open_memory{*this, "cuIpcOpenMemHandle_v2"};
  Call<DevicePointer> ipc_close_memory{*this, "cuIpcCloseMemHandle"};

  Call<ModuleHandle*, const void*> module_load{*this, "cuModuleLoadData"};
  Call<ModuleHandle> module_unload{*this, "cuModuleUnload"};
  Call<FunctionHandle*, ModuleHandle, const char*> module_function{*this, "cuModuleGetFunction"};
  /// How many blocks of so many threads, and bytes of shared memory, a multiprocessor holds.
  Call<int*, FunctionHandle, int, std::size_t> occupancy{
      *this, "cuOccupancyMaxActiveBlocksPerMultiprocessor"};
  /// Since CUDA 12.4.
  Call<FunctionHandle> function_load{*this, "cuFuncLoad", vendor::Need::Optional};
  Call<FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
       StreamHandle, void**, void**>
      launch{*this, "cuLaunchKernel"};
};

/// A failed call of the driver.
class DriverError : public Error {
 public:
  /// `doing`: for example "opening the fusion buffer of rank 3".
  DriverError(const DriverApi& api, const char* symbol, Result result, const std::string& doing);

  /// CUresult
  Result result() const noexcept { return result_; }

 private:
  Result result_;
};

/// Calls a function of the driver; throws DriverError unless it succeeds.
template <typename... Arguments, typename... Given>
void check(const DriverApi& api, const std::string& doing,
           const vendor::Entry<Result, Arguments...>& function, Given... given) {
  const Result result = function(given...);
  if (result != kSuccess) throw DriverError(api, function.symbol(), result, doing);
}

/// The oldest supported driver: that of CUDA 12.0.
constexpr int kOldestDriver = 12000;

/// The driver of this process.
struct LoadedDriver {
  std::shared_ptr<const DriverApi> api;  ///< null: it cannot be used
  int version = 0;                       ///< 13000 is CUDA 13.0
  std::string problem;                   ///< why not, and what to do; else empty
};

/// Loads it without initialising it, so that the process may still fork.
LoadedDriver find_driver(const vendor::SymbolLookup& lookup);
/// Loads and initialises it.
LoadedDriver load_driver(const vendor::SymbolLookup& lookup);

// GPU addresses as numbers, and as pointers that the host must not dereference.

inline const void* pointer_to(DevicePointer address) noexcept {
  return reinterpret_cast<const void*>(address);
}
inline void* writable(DevicePointer address) noexcept {
  return reinterpret_cast<void*>(address);
}
inline DevicePointer address_of(const void* pointer) noexcept {
  return reinterpret_cast<DevicePointer>(pointer);
}

/// The address of an element of `width` bytes.
inline const std::byte* at(const void* base, std::size_t element, std::size_t width) noexcept {
  return static_cast<const std::byte*>(base) + element * width;
}
inline std::byte* at(void* base, std::size_t element, std::size_t width) noexcept {
  return static_cast<std::byte*>(base) + element * width;
}

}  // namespace ronde::cuda
