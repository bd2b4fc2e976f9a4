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

/// Whole segment lists of every dtype, and all that Ronde's kernels do on the way.
Capabilities gpu_capabilities();

}  // namespace ronde::cuda
