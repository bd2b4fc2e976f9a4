// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/cuda/between_hosts.h"
#include "backends/cuda/collectives.h"
#include "backends/cuda/cuda.h"
#include "backends/cuda/ipc_peers.h"
#include "backends/cuda/registration_cache.h"
#include "backends/gpu/host_exchange.h"
#include "core/src/base/steps.h"

namespace ronde::cuda {

/// The operations of ranks that reach each other's fusion buffers (IpcPeers): a rank packs what it
/// brings into a half of its buffer, meets the others, and reads from theirs what it needs.
///
/// An allreduce is a one-shot where it is small (everybody reduces everything, after one meeting)
/// and a two-shot where it is large (everybody reduces a share, and then reads those of the others:
/// each byte crosses as rarely as possible). Where there are several hosts, it is a two-shot within
/// each, between whose halves the shares are combined with those of the other hosts; nothing else
/// is done across hosts.
///
/// Note [Halves]
/// A rank packs into a half again in the next chunk but one, when the others have to be done with
/// reading it. Chunk k + 2 needs no synchronisation of its own for that: it is packed behind this
/// rank's wait for the meeting of chunk k + 1, which each rank records in the one stream that has
/// read chunk k before. So every chunk begins with a meeting, once it is packed, also where this
/// rank brings nothing. What writes to memory that others read and is not of the next chunk but one
/// needs a meeting before it: the program, to tensors that were mapped, and operations that use the
/// fusion buffer without it being shared, which there are across hosts.
///
/// Thread-safety: as Collectives.
class IpcOperations final : public Collectives {
 public:
  /// Everything outlives it. `between`: null where all ranks are on one host.
  IpcOperations(Workbench& bench, IpcPeers& peers, RegistrationCache& cache,
                gpu::HostExchange& exchange, BetweenHosts* between, CudaCounters& counters,
                const CudaOptions& options, std::function<void(const std::string&)> warn);

  /// Of the fusion buffer.
  static std::size_t buffer_bytes(const CudaOptions& options) noexcept;

  Steps allreduce(AllreduceCall call) override;
  Steps broadcast(BroadcastCall call);

  /// Closes the tensors that it has mapped; nothing that is queued uses them.
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
  void let_go_of_read();

  /// Where a rank has packed the chunk.
  DevicePointer base(std::size_t rank) const { return peers_.fusion(rank) + offset_of_half(); }
  void reduce_all(const gpu::ChunkLayout& layout, const Travel& travel);

  ExportedMemory offer_of(const Segment& segment, std::size_t bytes) const;
  std::string try_to_map(const std::vector<ExportedMemory>& tensors);
  Steps map_tensors(const Segment& segment, std::size_t bytes, bool& was_done);
  Steps allreduce_directly(const Segment& segment, const Travel& travel, bool& was_done);

  IpcPeers& peers_;
  RegistrationCache& cache_;
  gpu::HostExchange& exchange_;
  BetweenHosts* const between_;
  const std::uint64_t block_bytes_;
  const bool keeps_;
  const std::function<void(const std::string&)> warn_;
  std::uint64_t direct_bytes_;
  const std::size_t one_shot_bytes_;
  std::uint64_t meetings_ = 0;  ///< counts them, equally on every rank
  std::vector<std::shared_ptr<MappedMemory>> mapped_;
  std::deque<InUse> in_use_;  ///< mappings that queued work reads
};

}  // namespace ronde::cuda
