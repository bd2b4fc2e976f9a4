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

#if CUDA_VERSION < 12040
CUresult cuFuncLoad(CUfunction function);
#endif

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

// Compares a function of `table` with the vendor's of its name. The build lists the members of the
// tables and their names (tests/support/CMakeLists.txt).
#define RONDE_CALL(member, function)                            \
  CHECK(kSameCall<std::remove_cvref_t<decltype(table.member)>,  \
                  std::remove_pointer_t<decltype(&function)>>); \
  ++checked;

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
#include "cuda_calls.inc"
  CHECK(checked == size_of<ronde::cuda::DriverApi>());
}

TEST_CASE("the nccl functions that Ronde declares are those of the installed one") {
  const ronde::nccl::NcclApi table;
  std::size_t checked = 0;
#include "nccl_calls.inc"
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
