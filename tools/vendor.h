// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backends/gpu/driver/device_query.h"
#include "backends/vendor/api_table.h"

namespace ronde::tool {

/// Version of a vendor's library, asked at run time.
struct VendorLibrary {
  bool found = false;
  std::string version;  ///< empty unless found
  std::string remark;   ///< why it was not found or is of no use, or what it complained about
};

struct CudaReport {
  VendorLibrary driver;
  std::vector<cuda::Gpu> gpus;
};

/// Asks libcuda.so.1. Initialises the driver, but makes no context and holds no memory of a GPU.
CudaReport ask_cuda(const vendor::SymbolLookup& lookup);

/// Asks libnccl.so.2.
VendorLibrary ask_nccl(const vendor::SymbolLookup& lookup);

}  // namespace ronde::tool
