// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/base/counters.h"
#include "backends/cuda/cuda.h"
#include "backends/cuda/ipc/ipc_peers.h"
#include "backends/cuda/ipc/registrations.h"
#include "backends/gpu/base/host_exchange.h"
#include "backends/gpu/collectives.h"
#include "core/src/base/steps.h"

namespace ronde::cuda {

/// Collectives by CUDA IPC (IpcPeers): each rank packs its input into a half of its fusion buffer,
/// meets its peers, and reads what it needs from their buffers.
///
/// A small allreduce is a one-shot: each rank reduces all elements after one meeting. A large one
/// is a two-shot: each rank reduces a share, and then reads the peers' shares, so that each byte
/// crosses links as rarely as possible.
///
/// Note [Halves]
/// A rank packs into the same half again in the next chunk but one, when its peers must have read
/// it. Chunk k + 2 needs no synchronisation of its own: it is packed behind this rank's wait for
/// the meeting of chunk k + 1, which each peer records in the stream that has read chunk k before.
/// So every chunk begins with a meeting, also if this rank has no input. The program's writes to
/// mapped tensors need a meeting before them.
///
/// Thread-safety: as Collectives.
class IpcOperations final : public Collectives {
 public:
  /// Everything outlives it.
  IpcOperations(GpuResources& resources, IpcPeers& peers, RegistrationCache& cache,
                gpu::HostExchange& exchange, CudaCounters& counters, const CudaOptions& options,
                std::function<void(const std::string&)> warn);

  /// The size of the fusion buffer, whose halves have room for a part of each of `ranks`.
  static std::size_t buffer_bytes(const CudaOptions& options, std::size_t ranks) noexcept;

  Steps allreduce(AllreduceCall call) override;
  Steps broadcast(BroadcastCall call);

 private:
  Steps exchange(Pattern pattern, RankParts to, RankParts from, std::size_t width) override;
  Traffic traffic() const override { return peers_.traffic(); }
  void begin_operation() override { counters_.fusion_mappings += peers_.hold(); }
  Steps end_operation() override;
  /// Records a meeting; an exchange and a wait must follow.
  void record() {
    peers_.record();
    counters_.flag_syncs += ranks_ > 1 ? 1 : 0;
  }
  Steps meet();

  /// The address of a rank's packed chunk.
  DevicePointer base(std::size_t rank) const { return peers_.fusion(rank) + offset_of_half(); }
  void reduce_all(const gpu::ChunkLayout& layout, const WireFormat& wire);

  ExportedMemory offer_of(const Segment& segment, std::size_t bytes) const;
  Steps map_tensors(const Segment& segment, std::size_t bytes, bool& was_done);
  Steps allreduce_directly(const Segment& segment, const WireFormat& wire, bool& was_done);

  IpcPeers& peers_;
  RegistrationCache& cache_;
  gpu::HostExchange& exchange_;
  CudaCounters& counters_;
  const std::uint64_t block_bytes_;
  const bool keeps_;
  const std::uint64_t cache_limit_;  ///< bytes of mappings
  const std::function<void(const std::string&)> warn_;
  std::uint64_t direct_bytes_;
  const std::size_t one_shot_bytes_;
  std::uint64_t meetings_ = 0;  ///< equal on all ranks
};

}  // namespace ronde::cuda
