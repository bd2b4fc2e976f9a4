// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backends/cuda/driver_api.h"
#include "ronde/backend.h"

// What the backends of GPUs have in common, by whatever library data moves.
namespace ronde::cuda {

/// Why this rank has no GPU that Ronde could use, and what to do; or an empty text. `image`: the
/// kernels, null if there are none.
std::string why_no_gpu(const LoadedDriver& driver, const void* image);

/// Why a GPU of compute capability `capability` (80 is 8.0), under a driver of CUDA `driver` (12040
/// is 12.4), does not run kernels that were compiled by the CUDA Toolkit `toolkit` (its major
/// version), and what to do; or an empty text.
std::string why_no_kernels(int capability, int driver, int toolkit);

/// Whole segment lists of every dtype, and all that Ronde's kernels do on the way.
Capabilities gpu_capabilities();

}  // namespace ronde::cuda
