// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "backends/vendor/api_table.h"

namespace ronde::cuda {

constexpr const char* kDriverLibrary = "libcuda.so.1";

// Declarations of the CUDA Driver API (cuda.h), with which Ronde is built and tested without a
// toolkit. tests/gpu/declarations_test.cc compares them with a toolkit's.

using Result = int;  ///< CUresult
using DeviceHandle = int;
constexpr Result kSuccess = 0;
constexpr Result kStubLibrary = 34;  ///< of the toolkit's libcuda.so, which can only be linked

struct Uuid {
  std::array<unsigned char, 16> bytes;
};

/// Functions that need no context on a GPU.
struct DeviceQueryApi : vendor::ApiTable {
  vendor::Entry<Result, unsigned> init{*this, "cuInit"};
  vendor::Entry<Result, int*> driver_version{*this, "cuDriverGetVersion"};
  vendor::Entry<Result, Result, const char**> error_string{*this, "cuGetErrorString"};
  vendor::Entry<Result, Result, const char**> error_name{*this, "cuGetErrorName"};
  vendor::Entry<Result, int*> device_count{*this, "cuDeviceGetCount"};
  vendor::Entry<Result, DeviceHandle*, int> device_get{*this, "cuDeviceGet"};
  vendor::Entry<Result, char*, int, DeviceHandle> device_name{*this, "cuDeviceGetName"};
  vendor::Entry<Result, std::size_t*, DeviceHandle> device_memory{*this, "cuDeviceTotalMem_v2"};
  vendor::Entry<Result, Uuid*, DeviceHandle> device_uuid{*this, "cuDeviceGetUuid_v2"};
  vendor::Entry<Result, char*, int, DeviceHandle> device_pci_id{*this, "cuDeviceGetPCIBusId"};
};

/// The driver's description of a GPU.
struct Gpu {
  int index = 0;  ///< ordinal among those that CUDA_VISIBLE_DEVICES leaves
  std::string name;
  std::uint64_t memory_bytes = 0;
  std::string uuid;    ///< "GPU-xxxxxxxx-...", as nvidia-smi writes it
  std::string pci_id;  ///< "0000:1b:00.0"
};

/// "cuMemFree_v2: CUDA_ERROR_INVALID_HANDLE: invalid resource handle (400)"
std::string error_text(const DeviceQueryApi& api, const char* symbol, Result result);

/// "13.0" of 13000
std::string version_text(int version);

/// Describes the GPU of that index. Returns the first failed call with its error, or empty.
[[nodiscard]] std::string describe_gpu(const DeviceQueryApi& api, int index, Gpu& gpu);

}  // namespace ronde::cuda
