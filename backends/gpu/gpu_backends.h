// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backends/gpu/driver/driver_api.h"
#include "ronde/backend.h"

// What the backends for GPUs have in common.
namespace ronde::cuda {

/// Why Ronde cannot use a GPU on this rank, and what to do; empty if it can. `image`: the kernels,
/// or null.
std::string why_no_gpu(const LoadedDriver& driver, const void* image);

/// Why a GPU of compute capability `capability` (80 is 8.0) with a driver of CUDA `driver` (12040
/// is 12.4) cannot run kernels compiled by the CUDA Toolkit of major version `toolkit`, and what to
/// do; empty if it can.
std::string why_no_kernels(int capability, int driver, int toolkit);

/// Lists of segments of every dtype, converted and scaled by Ronde's kernels.
Capabilities gpu_capabilities();

}  // namespace ronde::cuda
