// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "backends/cuda/collectives.h"
#include "backends/cuda/host_pipe.h"
#include "backends/cuda/workbench.h"
#include "core/src/base/steps.h"

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
  Steps allreduce(AllreduceCall call, std::size_t ranks);
  Steps broadcast(BroadcastCall call);
  Steps allgather(AllgatherCall call);
  Steps alltoall(AlltoallCall call);
  Steps reducescatter(ReducescatterCall call);
  Steps send(SendCall call);
  Steps recv(RecvCall call);
  /// @}

 private:
  /// How the elements of segments go through the host.
  struct Passage {
    Travel travel = {};
    bool reads = true;            ///< the inputs are sent
    bool skips_in_place = false;  ///< nothing is written where output and input are the same
    /// What the host does with a piece of it, in place.
    std::function<std::unique_ptr<Operation>(std::span<const Segment> piece)> launch = {};
  };
  Steps pass(std::span<const Segment> segments, Passage passage);

  /// Input down, the same call on the host, output up; a null one is not copied.
  template <typename Call>
  Steps pass_whole(Call call, std::size_t input_bytes, std::size_t output_bytes,
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
};

}  // namespace ronde::cuda
