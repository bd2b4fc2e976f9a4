// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/compose.h"

namespace ronde {

struct MpiOptions;

/// Adds the backends for GPUs. `mpi`: of the ranks that MPI has started, else null. Adds none in a
/// build without them (RONDE_BUILD_GPU).
void add_gpu_backends(const Config& config, const MpiOptions* mpi, BuiltIn& built_in);

/// The version of "cuda" or "nccl"; 0 where it cannot be used.
int gpu_feature_version(std::string_view feature, const vendor::SymbolLookup& gpu_libraries);

}  // namespace ronde
