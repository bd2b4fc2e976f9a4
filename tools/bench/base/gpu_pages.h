// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "backends/vendor/api_table.h"
#include "ronde/topology.h"
#include "tools/bench/base/ring.h"

namespace ronde::tool {

/// Where the GPUs are; tests bring their own.
struct GpuAccess {
  vendor::SymbolLookup symbols = vendor::dynamic_symbols();
  const void* kernel_image = nullptr;  ///< null: that which Ronde was built with
};

/// Memory of this rank's GPU: rank r of a host takes GPU r, counted around. Throws UsageError if
/// there is none, DriverError if it has too little memory.
std::unique_ptr<Pages> make_gpu_pages(const GpuAccess& access, const Topology& topology,
                                      std::size_t bytes);

}  // namespace ronde::tool
