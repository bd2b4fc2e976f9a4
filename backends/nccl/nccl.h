// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "backends/vendor/api_table.h"
#include "ronde/backend.h"

/// The backend of NCCL, for code that sets up a Runtime.
namespace ronde {

/// Must be equal on all ranks.
struct NcclOptions {
  std::uint64_t fusion_bytes = std::uint64_t{64} << 20;  ///< RONDE_FUSION_BYTES
  bool registration_cache = true;                        ///< RONDE_REGISTRATION_CACHE
  /// RONDE_EXACT: floating types are reduced in the order of ranks, by Ronde's kernels.
  bool exact = false;
  /// How long connecting waits for all ranks, in seconds (RONDE_INIT_TIMEOUT_S).
  double init_timeout_s = 120.0;
  /// How long NCCL may take to abort a communicator after a failure, and to close it at the end.
  std::chrono::milliseconds abort_bound{2000};
  std::chrono::milliseconds close_bound{10000};

  /// NCCL_MULTI_RANK_GPU_ENABLE: NCCL 2.30 and newer serve ranks that share a GPU.
  bool ranks_may_share_gpus = false;

  /// Makes the backend used instead where NCCL cannot connect all ranks: they share a GPU, have
  /// different versions, or a call fails. Without it, that is an error.
  std::function<std::unique_ptr<Backend>(BackendContext&)> fallback = {};

  /// Receives the UUID of the rank's GPU once the ranks connect.
  std::function<void(const std::string& uuid)> on_gpu = {};

  /// Find the functions of the driver and of NCCL; tests bring their own.
  vendor::SymbolLookup driver_symbols = vendor::dynamic_symbols();
  vendor::SymbolLookup nccl_symbols = vendor::dynamic_symbols();
  /// cuda::kernel_image(); null: this build has no kernels.
  const void* kernel_image = nullptr;
};

/// Makes the backend, which needs a GPU for each rank; its name is "nccl". The ranks connect when
/// it is made, each on the GPU of its local rank.
BackendFactory nccl_backend_factory(const NcclOptions& options);

}  // namespace ronde
