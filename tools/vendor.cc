// SPDX-License-Identifier: Apache-2.0
#include "vendor.h"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <utility>

namespace ronde::tool {
namespace {

constexpr const char* kCudaLibrary = "libcuda.so.1";
constexpr const char* kNcclLibrary = "libnccl.so.2";

// The few declarations of the driver that are needed here (CUDA Driver API, cuda.h): the tool is
// built on machines without a toolkit.
using CudaResult = int;
using CudaDevice = int;
constexpr CudaResult kCudaSuccess = 0;
struct CudaUuid {
  std::array<unsigned char, 16> bytes;
};

struct CudaApi {
  CudaResult (*init)(unsigned) = nullptr;
  CudaResult (*driver_version)(int*) = nullptr;
  CudaResult (*error_string)(CudaResult, const char**) = nullptr;
  CudaResult (*device_count)(int*) = nullptr;
  CudaResult (*device_get)(CudaDevice*, int) = nullptr;
  CudaResult (*device_name)(char*, int, CudaDevice) = nullptr;
  CudaResult (*device_memory)(std::size_t*, CudaDevice) = nullptr;
  CudaResult (*device_uuid)(CudaUuid*, CudaDevice) = nullptr;
  CudaResult (*device_pci_id)(char*, int, CudaDevice) = nullptr;
};

template <typename Function>
bool find(const SymbolLookup& lookup, const char* library, const char* symbol, Function*& function,
          std::string& error) {
  function = reinterpret_cast<Function*>(lookup(library, symbol, error));
  return function != nullptr;
}

bool load(const SymbolLookup& lookup, CudaApi& api, std::string& error) {
  const auto get = [&](const char* symbol, auto*& function) {
    return find(lookup, kCudaLibrary, symbol, function, error);
  };
  return get("cuInit", api.init) && get("cuDriverGetVersion", api.driver_version) &&
         get("cuGetErrorString", api.error_string) && get("cuDeviceGetCount", api.device_count) &&
         get("cuDeviceGet", api.device_get) && get("cuDeviceGetName", api.device_name) &&
         get("cuDeviceTotalMem_v2", api.device_memory) && get("cuDeviceGetUuid", api.device_uuid) &&
         get("cuDeviceGetPCIBusId", api.device_pci_id);
}

std::string describe_failure(const CudaApi& api, const char* call, CudaResult result) {
  const char* text = nullptr;
  api.error_string(result, &text);
  return std::string(call) + ": " + (text != nullptr ? text : "error") + " (" +
         std::to_string(result) + ")";
}

std::string format_uuid(const CudaUuid& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < uuid.bytes.size(); ++i) {
    std::array<char, 3> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x", static_cast<unsigned>(uuid.bytes[i]));
    const bool group_starts = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text += (group_starts ? "-" : "") + std::string(hex.data());
  }
  return text;
}

/// The first call that fails, or empty.
std::string describe_gpu(const CudaApi& api, int index, Gpu& gpu) {
  CudaDevice device = 0;
  std::array<char, 256> name{};
  std::array<char, 32> pci_id{};
  std::size_t memory = 0;
  CudaUuid uuid{};
  if (const auto result = api.device_get(&device, index); result != kCudaSuccess) {
    return describe_failure(api, "cuDeviceGet", result);
  }
  if (const auto result = api.device_name(name.data(), static_cast<int>(name.size()), device);
      result != kCudaSuccess) {
    return describe_failure(api, "cuDeviceGetName", result);
  }
  if (const auto result = api.device_memory(&memory, device); result != kCudaSuccess) {
    return describe_failure(api, "cuDeviceTotalMem", result);
  }
  if (const auto result = api.device_uuid(&uuid, device); result != kCudaSuccess) {
    return describe_failure(api, "cuDeviceGetUuid", result);
  }
  if (const auto result = api.device_pci_id(pci_id.data(), static_cast<int>(pci_id.size()), device);
      result != kCudaSuccess) {
    return describe_failure(api, "cuDeviceGetPCIBusId", result);
  }
  gpu = {index, name.data(), memory, format_uuid(uuid), pci_id.data()};
  return "";
}

}  // namespace

SymbolLookup dynamic_symbols() {
  return [](const char* library, const char* symbol, std::string& error) -> void* {
    void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void* const address = handle != nullptr ? dlsym(handle, symbol) : nullptr;
    if (address == nullptr) {
      const char* const words = dlerror();
      error = words != nullptr ? words : std::string(symbol) + " is not in " + library;
    }
    return address;
  };
}

CudaReport ask_cuda(const SymbolLookup& lookup) {
  CudaReport report;
  CudaApi api;
  if (!load(lookup, api, report.driver.remark)) {
    return report;
  }
  report.driver.found = true;
  int version = 0;  // 12040 is 12.4
  if (const auto result = api.driver_version(&version); result != kCudaSuccess) {
    report.driver.remark = describe_failure(api, "cuDriverGetVersion", result);
    return report;
  }
  report.driver.version =
      std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  if (const auto result = api.init(0); result != kCudaSuccess) {
    report.driver.remark = describe_failure(api, "cuInit", result);
    return report;
  }
  int count = 0;
  if (const auto result = api.device_count(&count); result != kCudaSuccess) {
    report.driver.remark = describe_failure(api, "cuDeviceGetCount", result);
    return report;
  }
  for (int index = 0; index < count; ++index) {
    Gpu gpu;
    report.driver.remark = describe_gpu(api, index, gpu);
    if (!report.driver.remark.empty()) {
      return report;
    }
    report.gpus.push_back(std::move(gpu));
  }
  return report;
}

VendorLibrary ask_nccl(const SymbolLookup& lookup) {
  VendorLibrary nccl;
  int (*get_version)(int*) = nullptr;
  if (!find(lookup, kNcclLibrary, "ncclGetVersion", get_version, nccl.remark)) {
    return nccl;
  }
  nccl.found = true;
  int version = 0;
  if (const int result = get_version(&version); result != 0) {
    nccl.remark = "ncclGetVersion: error " + std::to_string(result);
    return nccl;
  }
  // nccl.h, NCCL_VERSION: 22005 is 2.20.5; up to 2.8 it was 2804 for 2.8.4.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  nccl.version =
      std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
  return nccl;
}

}  // namespace ronde::tool
