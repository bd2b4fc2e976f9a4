// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/vendor/api_table.h"

namespace ronde::cuda {

constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

// Declarations of nvml.h, as for the driver.

using NvmlResult = int;  ///< nvmlReturn_t
constexpr NvmlResult kNvmlSuccess = 0;
struct NvmlDeviceTag;
using NvmlDevice = NvmlDeviceTag*;

/// NVML describes all GPUs of a machine, also those that CUDA_VISIBLE_DEVICES hides.
struct NvmlApi : vendor::ApiTable {
  vendor::Entry<NvmlResult> init{*this, "nvmlInit_v2"};
  vendor::Entry<NvmlResult> shutdown{*this, "nvmlShutdown"};
  vendor::Entry<const char*, NvmlResult> error_string{*this, "nvmlErrorString"};
  vendor::Entry<NvmlResult, unsigned*> device_count{*this, "nvmlDeviceGetCount_v2"};
  vendor::Entry<NvmlResult, unsigned, NvmlDevice*> device_by_index{*this,
                                                                   "nvmlDeviceGetHandleByIndex_v2"};
  vendor::Entry<NvmlResult, NvmlDevice, char*, unsigned> device_uuid{*this, "nvmlDeviceGetUUID"};
};

}  // namespace ronde::cuda
