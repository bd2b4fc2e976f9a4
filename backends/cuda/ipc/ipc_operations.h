// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/base/collectives.h"
#include "backends/cuda/cuda.h"
#include "backends/cuda/ipc/ipc_peers.h"
#include "backends/cuda/ipc/registration_cache.h"
#include "backends/cuda/staging/between_hosts.h"
#include "backends/gpu/base/host_exchange.h"
#include "core/src/base/steps.h"

namespace ronde::cuda {

/// Collectives by CUDA IPC (IpcPeers): each rank packs its input into a half of its fusion buffer,
/// meets its peers, and reads what it needs from their buffers.
///
/// A small allreduce is a one-shot: each rank reduces all elements after one meeting. A large one
/// is a two-shot: each rank reduces a share, and then reads the peers' shares, so that each byte
/// crosses links as rarely as possible. With several hosts, a two-shot runs within each host, and
/// its shares are combined over the hosts between its two halves; nothing else runs across hosts.
///
/// Note [Halves]
/// A rank packs into the same half again in the next chunk but one, when its peers must have read
/// it. Chunk k + 2 needs no synchronisation of its own: it is packed behind this rank's wait for
/// the meeting of chunk k + 1, which each peer records in the stream that has read chunk k before.
/// So every chunk begins with a meeting, also if this rank has no input. Other writes to memory
/// that peers read need a meeting before them: those of the program to mapped tensors, and those of
/// operations that use the fusion buffer alone, which exist across hosts.
///
/// Thread-safety: as Collectives.
class IpcOperations final : public Collectives {
 public:
  /// Everything outlives it. `between`: null if all ranks are on one host.
  IpcOperations(GpuResources& resources, IpcPeers& peers, RegistrationCache& cache,
                gpu::HostExchange& exchange, BetweenHosts* between, CudaCounters& counters,
                const CudaOptions& options, std::function<void(const std::string&)> warn);

  /// The size of the fusion buffer.
  static std::size_t buffer_bytes(const CudaOptions& options) noexcept;

  Steps allreduce(AllreduceCall call) override;
  Steps broadcast(BroadcastCall call);

  /// Closes mapped tensors; no queued work uses them.
  void forget() noexcept;

 private:
  struct InUse {
    std::vector<std::shared_ptr<MappedMemory>> mappings;
    Event read;
  };

  Steps exchange(Pattern pattern, RankParts to, RankParts from, std::size_t width) override;
  Traffic traffic() const override { return peers_.traffic(); }
  void begin_operation() override;
  Steps end_operation() override;
  void record();
  Steps meet();
  void release_read_tensors();

  /// The address of a rank's packed chunk.
  DevicePointer base(std::size_t rank) const { return peers_.fusion(rank) + offset_of_half(); }
  void reduce_all(const gpu::ChunkLayout& layout, const WireFormat& wire);

  ExportedMemory offer_of(const Segment& segment, std::size_t bytes) const;
  Steps map_tensors(const Segment& segment, std::size_t bytes, bool& was_done);
  Steps allreduce_directly(const Segment& segment, const WireFormat& wire, bool& was_done);

  IpcPeers& peers_;
  RegistrationCache& cache_;
  gpu::HostExchange& exchange_;
  BetweenHosts* const between_;
  const std::uint64_t block_bytes_;
  const bool keeps_;
  const std::function<void(const std::string&)> warn_;
  std::uint64_t direct_bytes_;
  const std::size_t one_shot_bytes_;
  std::uint64_t meetings_ = 0;  ///< equal on all ranks
  std::vector<std::shared_ptr<MappedMemory>> mapped_;
  std::deque<InUse> in_use_;  ///< mappings that queued work reads
};

}  // namespace ronde::cuda
