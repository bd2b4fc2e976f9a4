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
/// NCCL 2.27 and newer allocate the fusion buffer as a symmetric window, for NCCL's symmetric
/// kernels and reductions in switches. All ranks have the same version of NCCL.
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
  void* fusion() {
    return window_memory != nullptr ? window_memory : cuda::writable(resources.fusion());
  }

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

/// Runs `step` on all ranks and returns their results. If it fails on some, throws the error of the
/// first one on all.
std::vector<std::string> in_step(const BackendContext& context,
                                 const std::function<std::string()>& step);

/// Describes this rank, whose GPU is `device`, for conflict_of(). Throws Error if the driver has a
/// problem with it.
std::string describe_rank(const Libraries& libraries, const NcclOptions& options, int device);

/// Names two ranks that share a GPU and may not, or that have different versions of NCCL, which do
/// not connect, and says what to do. Empty if there are none. `ranks`: the descriptions.
std::string conflict_of(const BackendContext& context, const std::vector<std::string>& ranks);

/// Connects all ranks, on all or none: throws Error on each of them otherwise.
std::shared_ptr<Channel> connect(const Libraries& libraries, const NcclOptions& options,
                                 const BackendContext& context,
                                 const std::shared_ptr<cuda::CudaStreams>& streams, int device);

}  // namespace ronde::nccl
