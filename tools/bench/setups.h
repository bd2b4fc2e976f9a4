// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/bench/gpu_access.h"
#include "tools/bench/session.h"

namespace ronde::tool {

/// Allreduces of buffers on GPUs by several set-ups (gpu_setups), which take turns with each other,
/// with one copy of as many bytes within the GPU, and with a bare hand-over between the streams of
/// all ranks: over a range of sizes, and of a model's gradients fused as the engine would fuse
/// them, summed up by the size of the messages. The session is one of a backend alone. Collective.
void run_setups(Session& session, const GpuAccess& access = {});

}  // namespace ronde::tool
