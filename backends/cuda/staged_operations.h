// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backends/cuda/host_pipe.h"
#include "backends/cuda/ipc_operations.h"
#include "backends/cuda/travel.h"
#include "backends/cuda/workbench.h"
#include "backends/device/chunk_layout.h"
#include "backends/device/steps.h"

namespace ronde::cuda {

/// Operations of ranks that do not reach each other's GPUs: what lies on them is copied into
/// page-locked host memory, moved by the backend for the CPU, and copied back.
///
/// Lists of segments go through in pieces (HostPipe). Everything else is copied as a whole.
///
/// Thread-safety: one thread at a time, one operation at a time.
class StagedOperations {
 public:
  /// Everything outlives it. `rank`: within the process set.
  StagedOperations(Workbench& bench, HostPipe& pipe, Backend& host, CudaCounters& counters,
                   int rank);

  /// Each ends once all is queued on the stream of the workbench.
  /// @{
  device::Steps allreduce(AllreduceCall call, std::size_t ranks);
  device::Steps broadcast(BroadcastCall call);
  device::Steps allgather(AllgatherCall call);
  device::Steps alltoall(AlltoallCall call);
  device::Steps reducescatter(ReducescatterCall call);
  device::Steps send(SendCall call);
  device::Steps recv(RecvCall call);
  /// @}

 private:
  /// How the elements of segments go through the host.
  struct Passage {
    DataType from = DataType::F32;   ///< in the segments
    DataType dtype = DataType::F32;  ///< on the host
    double pack_scale = 1.0;
    bool reads = true;            ///< the inputs are sent
    bool writes_in_place = true;  ///< also where output and input are the same
    /// What the host does with pieces of it, in place.
    std::function<std::unique_ptr<Operation>(std::span<const Segment> pieces)> launch = {};
  };
  device::Steps pass(std::span<const Segment> segments, Passage passage);
  device::Steps pass_window(const device::ChunkLayout& layout, const Passage& passage);
  void pack(const device::ChunkLayout& layout, const Passage& passage);
  /// Plans how results go into the tensors; false: nobody here wants any of the window.
  bool plan_unpacking(const device::ChunkLayout& layout, const Passage& passage);
  std::span<const Segment> host_pieces(const device::ChunkLayout& layout,
                                       const HostPipe::Piece& piece, std::size_t width);

  /// Input down, the same call on the host, output up; a null one is not copied.
  template <typename Call>
  device::Steps pass_whole(Call call, std::size_t input_bytes, std::size_t output_bytes,
                           std::unique_ptr<Operation> (Backend::*start)(const Call& call));

  Workbench& bench_;
  HostPipe& pipe_;
  Backend& host_;
  CudaCounters& counters_;
  const int rank_;
  // Of the operation in progress: where that ends half-way, the GPU may still copy from and to
  // them, so they live as long as the rest.
  PinnedBlock whole_input_;
  PinnedBlock whole_output_;
  std::vector<SegmentMover::Move> moves_;
  std::vector<Segment> pieces_;
};

}  // namespace ronde::cuda
