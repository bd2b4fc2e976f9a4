// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backends/cuda/base/counters.h"
#include "backends/cuda/cuda.h"
#include "backends/gpu/gpu_resources.h"
#include "backends/gpu/kernels/moves.h"
#include "core/src/base/steps.h"

namespace ronde::cuda {

/// Operations of ranks that do not reach each other's GPUs: data is copied into page-locked host
/// memory, moved by the CPU's backend, and copied back. Lists of segments are copied in pieces:
/// while one is copied down, the host works on the previous one, and the one before that is copied
/// up, on another stream. Everything else is copied as a whole.
///
/// Thread-safety: one thread at a time, one operation at a time.
class StagedOperations {
 public:
  /// References outlive it. `up`: the stream for copies to the GPU. `rank`: within the process set.
  StagedOperations(GpuResources& resources, std::shared_ptr<Stream> up, const CudaOptions& options,
                   Backend& host, CudaCounters& counters, int rank);

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
  /// Memory of a piece on the host.
  struct Slot {
    Slot(const std::shared_ptr<const DeviceContext>& context, std::size_t bytes)
        : memory(context, bytes), down(context), up(context) {}
    PinnedMemory memory;
    Event down;  ///< after the copy from the GPU
    Event up;    ///< after the copy to it
    bool is_going_up = false;
  };

  Steps pass(std::span<const Segment> segments, Passage passage);
  Steps pass_chunk(const Passage& passage, std::size_t chunk_bytes, bool is_copied_up);
  void fetch(Slot& slot, const Passage& passage, std::size_t begin, std::size_t chunk_bytes);
  std::byte* room_in(PinnedMemory& memory, std::size_t bytes) const;

  /// Copies the input down, makes the call on the host, and copies the output up, unless null.
  template <typename Call>
  Steps pass_whole(Call call, std::size_t input_bytes, std::size_t output_bytes,
                   std::unique_ptr<Operation> (Backend::*start)(const Call& call));

  GpuResources& resources_;
  const std::shared_ptr<Stream> up_;
  const std::size_t piece_bytes_;
  const bool keeps_;  ///< page-locked memory, as freeing it might wait for the GPU
  Backend& host_;
  CudaCounters& counters_;
  const int rank_;
  // If an operation is given up, the GPU may still access these.
  std::vector<Slot> slots_;
  PinnedMemory whole_input_;
  PinnedMemory whole_output_;
};

}  // namespace ronde::cuda
