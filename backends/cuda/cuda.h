// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/vendor/api_table.h"
#include "backends/vendor/around_calls.h"
#include "ronde/backend.h"

/// The backend of buffers on NVIDIA's GPUs that needs no NCCL, for those who put a Runtime
/// together.
namespace ronde {

/// How the streams of ranks on one host wait for each other.
enum class IpcHandover {
  Auto,     ///< by kernels where each rank has a GPU of its own, else by flags
  Flags,    ///< in host memory, which streams write and wait for
  Kernels,  ///< which write and look at flags in the memory of GPUs
};

/// Must be equal on all ranks, but for `visible_devices`.
struct CudaOptions {
  std::uint64_t fusion_bytes = std::uint64_t{64} << 20;  ///< RONDE_FUSION_BYTES
  bool ipc = true;                                       ///< RONDE_CUDA_IPC
  IpcHandover ipc_handover = IpcHandover::Auto;          ///< RONDE_CUDA_IPC_HANDOVER
  std::uint64_t ipc_direct_bytes = 0;                    ///< RONDE_CUDA_IPC_DIRECT_BYTES
  bool exact = false;                                    ///< RONDE_EXACT
  bool registration_cache = true;                        ///< RONDE_REGISTRATION_CACHE
  std::uint64_t registration_cache_bytes = std::uint64_t{16} << 30;
  std::vector<std::string> visible_devices;  ///< RONDE_VISIBLE_DEVICES
  /// The largest allreduce that everybody reduces by itself. A two-shot moves half as many bytes
  /// for two ranks and less for more, but needs a second handover. A multiple of 256.
  std::uint64_t one_shot_bytes = std::uint64_t{512} << 10;
  /// The least that the driver lets other processes map: a tensor whose allocation does not begin
  /// and end at multiples of it shares that with others, and is not mapped itself.
  std::uint64_t ipc_block_bytes = std::uint64_t{2} << 20;
  /// Of what is staged, the pieces that are on their way at the same time: copying one takes long
  /// against starting a copy. A multiple of 16.
  std::uint64_t staged_piece_bytes = std::uint64_t{2} << 20;
  /// How long the first look into the other ranks' memory may take, which copies a few bytes,
  /// before CUDA IPC is given up.
  std::chrono::milliseconds ipc_patience{10'000};
  /// Makes a backend whose messages may be in memory of GPUs, and says where a rank cannot have it;
  /// of a process set only where it serves those. It is used for what CUDA IPC does not move, once
  /// a trial of as much `ipc_patience` has proven it. Empty on all ranks: everything else is
  /// staged.
  BackendFactory gpu_aware_mpi = {};
  /// Of all calls of that MPI, which may go on with messages in memory of GPUs in any of them, and
  /// then needs the GPU's context. Empty: its calls need nothing.
  vendor::SurroundCalls surround_mpi_calls = {};

  /// Where the driver's functions are found; tests bring their own.
  vendor::SymbolLookup symbols = vendor::dynamic_symbols();
  /// The kernels, for cuModuleLoadData; null: those that Ronde was built with.
  const void* kernel_image = nullptr;
};

/// Makes the backend: between the ranks of one host by CUDA IPC where that works, else by an MPI
/// that takes addresses of GPUs, else staged through page-locked host memory for the backend of the
/// CPU. Its name is "mpi", as the design calls what is not NCCL.
BackendFactory cuda_backend_factory(const CudaOptions& options);

}  // namespace ronde
