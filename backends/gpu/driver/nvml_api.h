// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backends/vendor/api_table.h"

namespace ronde::cuda {

constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

// Declarations of nvml.h, as for the driver.

using NvmlResult = int;  ///< nvmlReturn_t
constexpr NvmlResult kNvmlSuccess = 0;
constexpr NvmlResult kNvmlNotSupported = 3;
struct NvmlDeviceTag;
using NvmlDevice = NvmlDeviceTag*;

struct NvmlUtilization {
  unsigned gpu = 0, memory = 0;  ///< per cent of the time
};

struct NvmlMemory {
  unsigned long long total = 0, free = 0, used = 0;
};

/// NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_*: counters of KiB
constexpr unsigned kNvmlNvlinkSent = 138;
constexpr unsigned kNvmlNvlinkReceived = 139;

/// nvmlFieldValue_t
struct NvmlFieldValue {
  unsigned field = 0;
  unsigned scope = ~0U;  ///< for NVLink: all links together
  long long timestamp_us = 0, latency_us = 0;
  int type = 0;  ///< 0: a floating one, else an integer
  NvmlResult result = kNvmlNotSupported;
  std::uint64_t value = 0;

  bool is_known() const noexcept { return result == kNvmlSuccess && type != 0; }
};

/// The functions that read what a GPU does.
struct NvmlApi : vendor::ApiTable {
  template <typename... Arguments>
  using Call = vendor::Entry<NvmlResult, Arguments...>;

  Call<> init{*this, "nvmlInit_v2"};
  Call<> shutdown{*this, "nvmlShutdown"};
  vendor::Entry<const char*, NvmlResult> error_string{*this, "nvmlErrorString"};
  Call<const char*, NvmlDevice*> device_by_uuid{*this, "nvmlDeviceGetHandleByUUID"};
  Call<NvmlDevice, NvmlUtilization*> utilization{*this, "nvmlDeviceGetUtilizationRates"};
  Call<NvmlDevice, NvmlMemory*> memory{*this, "nvmlDeviceGetMemoryInfo"};
  Call<NvmlDevice, int, NvmlFieldValue*> field_values{*this, "nvmlDeviceGetFieldValues"};
};

}  // namespace ronde::cuda
