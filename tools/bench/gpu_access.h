// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "backends/cuda/driver_api.h"
#include "backends/vendor/api_table.h"
#include "ronde/topology.h"

namespace ronde::tool {

/// Where the GPUs are; tests bring their own.
struct GpuAccess {
  vendor::SymbolLookup symbols = vendor::dynamic_symbols();
  const void* kernel_image = nullptr;  ///< null: that which Ronde was built with
};

/// Throws UsageError if there is none.
std::shared_ptr<const cuda::DriverApi> driver_of(const GpuAccess& access);

/// The GPU of this rank: rank r of a host takes GPU r, counted around.
int device_of(const cuda::DriverApi& api, const Topology& topology);

}  // namespace ronde::tool
