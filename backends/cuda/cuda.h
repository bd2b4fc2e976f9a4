// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backends/vendor/api_table.h"
#include "ronde/backend.h"

/// The backend for buffers on NVIDIA's GPUs that needs no NCCL, for code that sets up a Runtime.
namespace ronde {

/// Must be equal on all ranks, but for `visible_devices`.
struct CudaOptions {
  std::uint64_t fusion_bytes = std::uint64_t{64} << 20;     ///< RONDE_FUSION_BYTES
  bool ipc = true;                                          ///< RONDE_CUDA_IPC
  std::uint64_t ipc_direct_bytes = std::uint64_t{1} << 20;  ///< RONDE_CUDA_IPC_DIRECT_BYTES
  bool registration_cache = true;                           ///< RONDE_REGISTRATION_CACHE
  std::uint64_t registration_cache_bytes = std::uint64_t{16} << 30;
  std::vector<std::string> visible_devices;  ///< RONDE_VISIBLE_DEVICES: UUIDs or their beginnings
  /// The largest allreduce that each rank reduces by itself. A two-shot moves half as many bytes
  /// or less, but needs a second synchronisation. A multiple of 256.
  std::uint64_t one_shot_bytes = std::uint64_t{512} << 10;
  /// The driver maps whole blocks of this size into other processes: a tensor whose allocation does
  /// not begin and end at multiples of it shares a block with others, and is not mapped.
  std::uint64_t ipc_block_bytes = std::uint64_t{2} << 20;
  /// Staged data is copied in pieces of this size: copying one takes far longer than starting the
  /// copy. A multiple of 16.
  std::uint64_t staged_piece_bytes = std::uint64_t{2} << 20;
  /// Timeout of the trial of CUDA IPC, which copies a few bytes.
  std::chrono::milliseconds ipc_patience{10'000};
  /// Makes a backend that sends and receives memory of GPUs, for what CUDA IPC does not move. Empty
  /// on all ranks: everything else is staged. Process sets use it only if it serves them.
  BackendFactory gpu_aware_mpi = {};

  /// Receives the UUID of the rank's GPU in the first operation.
  std::function<void(const std::string& uuid)> on_gpu = {};

  /// Finds the driver's functions; tests bring their own.
  vendor::SymbolLookup symbols = vendor::dynamic_symbols();
  /// The kernels, for cuModuleLoadData; null: those of this build.
  const void* kernel_image = nullptr;
};

/// Makes the backend. It moves data by CUDA IPC between ranks that all are on one host, else by a
/// GPU-aware MPI, else through page-locked host memory and the CPU's backend. Its name is "cuda".
BackendFactory cuda_backend_factory(const CudaOptions& options);

}  // namespace ronde
