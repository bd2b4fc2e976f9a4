// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ronde/runtime.h"

namespace ronde {

/// Shows spans, waits and buckets as ranges of NVTX's domain "ronde", and steps as its marks.
/// Empty if no tool that reads NVTX, such as Nsight Systems, has started this process.
EventCallback nvtx_ranges();

}  // namespace ronde
