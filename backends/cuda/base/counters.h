// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace ronde::cuda {

/// Counts what the operations of the backend "cuda" do.
struct CudaCounters {
  std::atomic<std::uint64_t> ipc_operations{0}, staged_operations{0}, mpi_operations{0},
      mpi_sent_bytes{0}, one_shots{0}, two_shots{0}, direct{0}, flag_syncs{0}, fusion_mappings{0},
      packed_bytes{0}, staged_bytes{0};
};

}  // namespace ronde::cuda
