// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "backends/cuda/base/collectives.h"
#include "backends/cuda/staging/host_pipe.h"
#include "backends/gpu/gpu_resources.h"
#include "core/src/base/steps.h"

namespace ronde::cuda {

/// Operations of ranks that do not reach each other's GPUs: data is copied into page-locked host
/// memory, moved by the CPU's backend, and copied back. Lists of segments are copied in pieces
/// (HostPipe), everything else as a whole.
///
/// Thread-safety: one thread at a time, one operation at a time.
class StagedOperations {
 public:
  /// Everything outlives it. `rank`: within the process set.
  StagedOperations(GpuResources& resources, HostPipe& pipe, Backend& host, CudaCounters& counters,
                   int rank);

  /// Each of these ends once all work is queued on the resources' stream.
  Steps allreduce(AllreduceCall call);
  Steps broadcast(BroadcastCall call);
  Steps allgather(AllgatherCall call);
  Steps alltoall(AlltoallCall call);
  Steps reducescatter(ReducescatterCall call);
  Steps send(SendCall call);
  Steps recv(RecvCall call);

 private:
  /// How the elements of segments pass through the host.
  struct Passage {
    WireFormat wire = {};
    bool reads = true;            ///< the inputs are sent
    bool skips_in_place = false;  ///< outputs that are inputs are not written
    /// The host's operation on a piece, in place.
    std::function<std::unique_ptr<Operation>(std::span<const Segment> piece)> launch = {};
  };
  Steps pass(std::span<const Segment> segments, Passage passage);

  /// Copies the input down, makes the same call on the host, and copies the output up; null ones
  /// are not copied.
  template <typename Call>
  Steps pass_whole(Call call, std::size_t input_bytes, std::size_t output_bytes,
                   std::unique_ptr<Operation> (Backend::*start)(const Call& call));

  GpuResources& resources_;
  HostPipe& pipe_;
  Backend& host_;
  CudaCounters& counters_;
  const int rank_;
  // Those of the operation in progress: if it is given up, the GPU may still access them.
  PinnedBlock whole_input_;
  PinnedBlock whole_output_;
};

}  // namespace ronde::cuda
