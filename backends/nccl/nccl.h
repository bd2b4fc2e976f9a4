// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "backends/vendor/api_table.h"
#include "ronde/backend.h"

/// The backend of NCCL for those who put a Runtime together.
namespace ronde {

/// Must be equal on all ranks.
struct NcclOptions {
  std::uint64_t streams = 1;                             ///< RONDE_NCCL_STREAMS
  std::uint64_t fusion_bytes = std::uint64_t{64} << 20;  ///< RONDE_FUSION_BYTES
  bool registration_cache = true;                        ///< RONDE_REGISTRATION_CACHE
  /// RONDE_EXACT: floating types are reduced in the order of ranks, by Ronde's kernels.
  bool exact = false;
  /// How long to wait for the other ranks, in seconds (RONDE_INIT_TIMEOUT_S).
  double init_timeout_s = 120.0;
  /// How long NCCL may take to end what is in progress once the group is dead, and to close
  /// communicators at the end.
  /// @{
  std::chrono::milliseconds abort_bound{2000};
  std::chrono::milliseconds close_bound{10000};
  /// @}

  /// Makes the backend that takes over for good where ranks share a GPU, which NCCL cannot serve:
  /// one that takes the same calls. It is made within an operation: of the context, `exchange` is
  /// empty. None: such ranks are an error.
  std::function<std::unique_ptr<Backend>(BackendContext&)> fallback = {};

  /// Where the functions of the driver and of NCCL are found; tests bring their own.
  /// @{
  vendor::SymbolLookup driver_symbols = vendor::dynamic_symbols();
  vendor::SymbolLookup nccl_symbols = vendor::dynamic_symbols();
  /// @}
  /// cuda::kernel_image(); null: this build has no kernels.
  const void* kernel_image = nullptr;
};

/// Makes the backend, which needs a GPU for each rank; its name is "nccl". Nothing happens on a GPU
/// before the first operation, in which the ranks connect.
BackendFactory nccl_backend_factory(const NcclOptions& options);

}  // namespace ronde
