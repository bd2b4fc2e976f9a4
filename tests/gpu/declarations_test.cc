// SPDX-License-Identifier: Apache-2.0
// Ronde declares what it calls of CUDA and NCCL by itself: here it is compared with the vendors'
// headers, where a toolkit is installed.
#include <cuda.h>
#include <nccl.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backends/gpu/driver/driver_api.h"
#include "backends/gpu/kernels/kernel_image.h"
#include "tests/support/fakes/fake_cuda.h"
#include "tests/support/fakes/fake_nccl.h"

namespace {

/// Whether the two are passed alike.
template <typename Ours, typename Theirs>
constexpr bool kAlike =
    sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>&& std::is_class_v<Ours> ==
        std::is_class_v<Theirs>&& std::is_floating_point_v<Ours> ==
        std::is_floating_point_v<Theirs>;

template <typename Ours, typename Theirs>
constexpr bool kSameCall = false;
template <typename Result, typename... Ours, typename Their, typename... Theirs>
requires(sizeof...(Ours) == sizeof...(Theirs)) constexpr bool kSameCall<
    ronde::vendor::Entry<Result, Ours...>, Their(Theirs...)> = kAlike<Result, Their> &&
                                                               (kAlike<Ours, Theirs> && ...);

// `table` has `member`, which is to be called as the vendor's `function`.
#define CHECK_CALL(member, function)                            \
  CHECK(std::string(table.member.symbol()) == #function);       \
  CHECK(kSameCall<std::remove_cvref_t<decltype(table.member)>,  \
                  std::remove_pointer_t<decltype(&function)>>); \
  ++checked

/// How many functions a table has.
template <typename Table>
std::size_t size_of() {
  Table table;
  std::size_t count = 0;
  const std::string problem = table.load(
      [&](const char*, const char*, std::string&) -> void* { return ++count, &count; }, "any");
  CHECK(problem.empty());
  return count;
}

TEST_CASE("the cuda functions that Ronde declares are those of the toolkit") {
  const ronde::cuda::DriverApi table;
  std::size_t checked = 0;
  CHECK_CALL(init, cuInit);
  CHECK_CALL(driver_version, cuDriverGetVersion);
  CHECK_CALL(error_string, cuGetErrorString);
  CHECK_CALL(error_name, cuGetErrorName);
  CHECK_CALL(device_count, cuDeviceGetCount);
  CHECK_CALL(device_get, cuDeviceGet);
  CHECK_CALL(device_name, cuDeviceGetName);
  CHECK_CALL(device_memory, cuDeviceTotalMem_v2);
  CHECK_CALL(device_uuid, cuDeviceGetUuid_v2);
  CHECK_CALL(device_pci_id, cuDeviceGetPCIBusId);
  CHECK_CALL(device_attribute, cuDeviceGetAttribute);
  CHECK_CALL(primary_context_retain, cuDevicePrimaryCtxRetain);
  CHECK_CALL(primary_context_release, cuDevicePrimaryCtxRelease_v2);
  CHECK_CALL(context_push, cuCtxPushCurrent_v2);
  CHECK_CALL(context_pop, cuCtxPopCurrent_v2);
  CHECK_CALL(exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
  CHECK_CALL(stream_is_capturing, cuStreamIsCapturing);
  CHECK_CALL(allocate, cuMemAlloc_v2);
  CHECK_CALL(free, cuMemFree_v2);
  CHECK_CALL(host_allocate, cuMemHostAlloc);
  CHECK_CALL(host_free, cuMemFreeHost);
  CHECK_CALL(host_register, cuMemHostRegister_v2);
  CHECK_CALL(host_device_pointer, cuMemHostGetDevicePointer_v2);
  CHECK_CALL(host_unregister, cuMemHostUnregister);
  CHECK_CALL(address_range, cuMemGetAddressRange_v2);
  CHECK_CALL(pointer_attribute, cuPointerGetAttribute);
  CHECK_CALL(copy, cuMemcpyAsync);
  CHECK_CALL(fill, cuMemsetD8Async);
  CHECK_CALL(stream_create, cuStreamCreateWithPriority);
  CHECK_CALL(stream_destroy, cuStreamDestroy_v2);
  CHECK_CALL(stream_query, cuStreamQuery);
  CHECK_CALL(stream_synchronize, cuStreamSynchronize);
  CHECK_CALL(stream_wait_event, cuStreamWaitEvent);
  CHECK_CALL(stream_memory_operations, cuStreamBatchMemOp_v2);
  CHECK_CALL(stream_priority_range, cuCtxGetStreamPriorityRange);
  CHECK_CALL(event_create, cuEventCreate);
  CHECK_CALL(event_destroy, cuEventDestroy_v2);
  CHECK_CALL(event_record, cuEventRecord);
  CHECK_CALL(event_query, cuEventQuery);
  CHECK_CALL(ipc_get_memory, cuIpcGetMemHandle);
  CHECK_CALL(ipc_open_memory, cuIpcOpenMemHandle_v2);
  CHECK_CALL(ipc_close_memory, cuIpcCloseMemHandle);
  CHECK_CALL(module_load, cuModuleLoadData);
  CHECK_CALL(module_unload, cuModuleUnload);
  CHECK_CALL(module_function, cuModuleGetFunction);
  CHECK_CALL(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor);
#if CUDA_VERSION >= 12040
  CHECK_CALL(function_load, cuFuncLoad);
#else
  ++checked;
#endif
  CHECK_CALL(launch, cuLaunchKernel);
  CHECK(checked == size_of<ronde::cuda::DriverApi>());
}

TEST_CASE("the nccl functions that Ronde declares are those of the installed one") {
  const ronde::nccl::NcclApi table;
  std::size_t checked = 0;
  CHECK_CALL(get_version, ncclGetVersion);
  CHECK_CALL(error_string, ncclGetErrorString);
  CHECK_CALL(last_error, ncclGetLastError);
  CHECK_CALL(get_unique_id, ncclGetUniqueId);
  CHECK_CALL(init_rank, ncclCommInitRankConfig);
  CHECK_CALL(finalize, ncclCommFinalize);
  CHECK_CALL(destroy, ncclCommDestroy);
  CHECK_CALL(abort, ncclCommAbort);
  CHECK_CALL(async_error, ncclCommGetAsyncError);
  CHECK_CALL(group_start, ncclGroupStart);
  CHECK_CALL(group_end, ncclGroupEnd);
  CHECK_CALL(all_reduce, ncclAllReduce);
  CHECK_CALL(reduce_scatter, ncclReduceScatter);
  CHECK_CALL(broadcast, ncclBroadcast);
  CHECK_CALL(all_gather, ncclAllGather);
  CHECK_CALL(send, ncclSend);
  CHECK_CALL(recv, ncclRecv);
  CHECK_CALL(register_window, ncclCommWindowRegister);
  CHECK_CALL(deregister_window, ncclCommWindowDeregister);
  CHECK_CALL(allocate, ncclMemAlloc);
  CHECK_CALL(free, ncclMemFree);
  CHECK(checked == size_of<ronde::nccl::NcclApi>());
}

TEST_CASE("the cuda kernels are compiled in, as a module that the driver takes") {
  const void* const image = ronde::cuda::kernel_image();
  REQUIRE(image != nullptr);
  std::uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof(magic));
  CHECK(magic == 0xba55ed50);
}

TEST_CASE("the cuda numbers that Ronde declares are those of the toolkit") {
  using namespace ronde::cuda;
  CHECK(kSuccess == CUDA_SUCCESS);
  CHECK(kInvalidValue == CUDA_ERROR_INVALID_VALUE);
  CHECK(kStubLibrary == CUDA_ERROR_STUB_LIBRARY);
  CHECK(kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(kDeinitialized == CUDA_ERROR_DEINITIALIZED);
  CHECK(kMapFailed == CUDA_ERROR_MAP_FAILED);
  CHECK(kInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
  CHECK(kNotReady == CUDA_ERROR_NOT_READY);
  CHECK(kHostMemoryAlreadyRegistered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK(kNotSupported == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(kCaptureImplicit == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK(kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
  CHECK(kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
  CHECK(kIpcLazyEnablePeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  CHECK(kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
  CHECK(kHostRegisterMapped == CU_MEMHOSTREGISTER_DEVICEMAP);
  CHECK(kWaitForWord == CU_STREAM_MEM_OP_WAIT_VALUE_32);
  CHECK(kWriteWord == CU_STREAM_MEM_OP_WRITE_VALUE_32);
  CHECK(StreamMemoryOperation{}.flags == CU_STREAM_WAIT_VALUE_GEQ);
  CHECK(StreamMemoryOperation{}.flags == CU_STREAM_WRITE_VALUE_DEFAULT);
  CHECK(sizeof(StreamMemoryOperation) == sizeof(CUstreamBatchMemOpParams));
  using Theirs = CUstreamBatchMemOpParams;
  CHECK(offsetof(StreamMemoryOperation, address) == offsetof(Theirs, waitValue.address));
  CHECK(offsetof(StreamMemoryOperation, value) == offsetof(Theirs, waitValue.value));
  CHECK(offsetof(StreamMemoryOperation, flags) == offsetof(Theirs, waitValue.flags));
  CHECK(offsetof(StreamMemoryOperation, alias) == offsetof(Theirs, waitValue.alias));
  CHECK(offsetof(StreamMemoryOperation, value) == offsetof(Theirs, writeValue.value));
  CHECK(offsetof(StreamMemoryOperation, flags) == offsetof(Theirs, writeValue.flags));
  CHECK(kAttributeMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  CHECK(kAttributeComputeCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  CHECK(kAttributeComputeCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  CHECK(kPointerBufferId == CU_POINTER_ATTRIBUTE_BUFFER_ID);
  CHECK(kPointerIsLegacyIpcCapable == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
}

TEST_CASE("the nccl numbers and structures that Ronde declares are those of the installed one") {
  using namespace ronde::nccl;
  CHECK(kSuccess == ncclSuccess);
  CHECK(kUnhandledCudaError == ncclUnhandledCudaError);
  CHECK(kSystemError == ncclSystemError);
  CHECK(kInternalError == ncclInternalError);
  CHECK(kInvalidArgument == ncclInvalidArgument);
  CHECK(kInvalidUsage == ncclInvalidUsage);
  CHECK(kRemoteError == ncclRemoteError);
  CHECK(kInProgress == ncclInProgress);
  CHECK(kInt8 == ncclInt8);
  CHECK(kUint8 == ncclUint8);
  CHECK(kInt32 == ncclInt32);
  CHECK(kInt64 == ncclInt64);
  CHECK(kFloat16 == ncclFloat16);
  CHECK(kFloat32 == ncclFloat32);
  CHECK(kFloat64 == ncclFloat64);
  CHECK(kBfloat16 == ncclBfloat16);
  CHECK(kSum == ncclSum);
  CHECK(kProduct == ncclProd);
  CHECK(kMax == ncclMax);
  CHECK(kMin == ncclMin);
  CHECK(kAverage == ncclAvg);
  CHECK(kSymmetricWindow == NCCL_WIN_COLL_SYMMETRIC);
  CHECK(kUndefined == NCCL_CONFIG_UNDEF_INT);
  const CommunicatorConfig ours;
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  CHECK(ours.magic == theirs.magic);
  CHECK(ours.size <= theirs.size);
  CHECK(offsetof(CommunicatorConfig, version) == offsetof(ncclConfig_t, version));
  CHECK(offsetof(CommunicatorConfig, blocking) == offsetof(ncclConfig_t, blocking));
  CHECK(offsetof(CommunicatorConfig, net_name) == offsetof(ncclConfig_t, netName));
  CHECK(offsetof(CommunicatorConfig, split_share) == offsetof(ncclConfig_t, splitShare));
}

}  // namespace
