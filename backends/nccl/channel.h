// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/gpu/driver/cuda_streams.h"
#include "backends/gpu/gpu_resources.h"
#include "backends/nccl/communicator.h"
#include "backends/nccl/nccl.h"

namespace ronde::nccl {

struct Counts {
  std::atomic<std::uint64_t> collectives{0}, messages{0}, bytes{0}, direct_chunks{0},
      packed_chunks{0}, chunks_in_order{0};
};

/// The communicator of a process set, with the stream and the memory of its operations.
///
/// NCCL 2.27 and newer have the fusion buffer as a symmetric window: NCCL allocates it, and it lies
/// at the same offset on each rank, for NCCL's symmetric kernels and reductions in switches. All
/// ranks have the same version of NCCL.
///
/// Thread-safety: tasks of the communicator call the functions; the destructor: any thread, once
/// these have stopped.
struct Channel {
  Channel(std::shared_ptr<const NcclApi> api, const NcclOptions& the_options, std::size_t the_rank,
          std::size_t the_size, std::shared_ptr<cuda::CudaStreams> the_streams, int device);
  /// Frees the window's memory. Aborts the communicator before unless it has ended.
  ~Channel();

  /// Makes the communicator, and the memory of the window if there may be one. Blocks until all
  /// ranks call it.
  void connect(const UniqueId& id);
  /// Makes a window of that memory, if there is one. Blocks likewise.
  void register_fusion();
  /// Ends both. Blocks until all ranks call it.
  void close();
  /// The fusion buffer, of GpuResources::fusion_bytes(). Throws Error if there is too little
  /// memory.
  std::byte* fusion();

  const NcclOptions options;
  const std::size_t rank;
  const std::size_t size;
  const std::shared_ptr<cuda::CudaStreams> streams;
  cuda::GpuResources resources;
  const std::shared_ptr<BlockingCommunicator> communicator;  ///< shared with ends of operations
  Counts counts = {};
  void* window_memory = nullptr;  ///< null: `resources` have the fusion buffer
  Window window = nullptr;        ///< null also where NCCL was set not to register memory
};

/// The loaded libraries of the vendors.
struct Libraries {
  std::shared_ptr<const cuda::DriverApi> driver;
  std::shared_ptr<const NcclApi> nccl;
  int nccl_version = 0;
};

/// The GPU and the NCCL of a rank.
struct RankGpu {
  int rank = 0;  ///< as texts name it
  int host = 0;
  std::string nccl_version;
  std::string pci_id;
  std::string uuid;
  bool may_share = false;  ///< the GPU with others that say so, too
};

/// Names two ranks that share a GPU and may not, and says what to do. Empty if none do.
std::string shared_gpu(const std::vector<RankGpu>& ranks);

/// Names two ranks with different versions of NCCL, which do not connect. Empty if there are none.
std::string mixed_versions(const std::vector<RankGpu>& ranks);

/// Returns what exchange_gpus() sends of this rank, whose GPU is `device`. Throws Error if the
/// driver has a problem with it.
std::string describe_rank(const Libraries& libraries, const NcclOptions& options, int device);

/// Exchanges the GPUs and the NCCL of all ranks. Throws Error on all of them if `describe` throws
/// on one.
std::vector<RankGpu> exchange_gpus(const BackendContext& context,
                                   const std::function<std::string()>& describe);

/// Connects all ranks, on all or none: throws Error on each of them otherwise.
std::shared_ptr<Channel> connect(const Libraries& libraries, const NcclOptions& options,
                                 const BackendContext& context,
                                 const std::shared_ptr<cuda::CudaStreams>& streams, int device);

}  // namespace ronde::nccl
