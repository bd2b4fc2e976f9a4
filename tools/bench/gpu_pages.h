// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "tools/bench/gpu_access.h"
#include "tools/bench/ring.h"

namespace ronde::tool {

/// Memory of this rank's GPU. Throws UsageError if there is none, DriverError if it has too little.
std::unique_ptr<Pages> make_gpu_pages(const GpuAccess& access, const Topology& topology,
                                      std::size_t bytes);

}  // namespace ronde::tool
