// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/cuda/between_hosts.h"
#include "backends/cuda/cuda.h"
#include "backends/cuda/ipc_peers.h"
#include "backends/cuda/moves.h"
#include "backends/cuda/travel.h"
#include "backends/cuda/workbench.h"
#include "backends/device/chunk_layout.h"
#include "backends/device/host_exchange.h"
#include "backends/device/steps.h"

namespace ronde::cuda {

/// What the operations of a CudaBackend have done.
struct CudaCounters {
  std::atomic<std::uint64_t> ipc_operations{0}, staged_operations{0}, one_shots{0}, two_shots{0},
      across_hosts{0}, direct{0}, handovers{0}, flag_handovers{0}, kernel_handovers{0},
      fusion_mappings{0}, packed_bytes{0}, staged_bytes{0};
};

/// The operations of ranks that reach each other's fusion buffers (IpcPeers). All work in chunks:
/// each rank packs what it brings into a half of its buffer, meets the others, and reads from
/// theirs what it needs.
///
/// An allreduce is a one-shot where it is small (everybody reduces everything, after one meeting)
/// and a two-shot where it is large (everybody reduces a share, and then reads those of the others:
/// each byte crosses as rarely as possible). Where there are several hosts, it is a two-shot within
/// each, between whose halves the shares are combined with those of the other hosts; nothing else
/// is done across hosts.
///
/// Ranks gather from the others in turn, each beginning with the one after itself: if all began
/// with the same rank, its link would limit them. They reduce in the order of ranks, for equal
/// bits.
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
/// Thread-safety: one thread at a time, one operation at a time.
class IpcOperations {
 public:
  /// Everything outlives it. `between`: null where all ranks are on one host.
  IpcOperations(Workbench& bench, IpcPeers& peers, RegistrationCache& cache,
                device::HostExchange& exchange, BetweenHosts* between, CudaCounters& counters,
                const CudaOptions& options, std::function<void(const std::string&)> warn);

  /// Of the fusion buffer.
  static std::size_t buffer_bytes(const CudaOptions& options) noexcept;

  /// Each ends once all is queued on the stream of the workbench.
  /// @{
  device::Steps allreduce(AllreduceCall call);
  device::Steps broadcast(BroadcastCall call);
  device::Steps allgather(AllgatherCall call);
  device::Steps alltoall(AlltoallCall call);
  device::Steps reducescatter(ReducescatterCall call);
  /// @}

  /// Closes the tensors that it has mapped; nothing that is queued uses them.
  void forget() noexcept;

 private:
  struct InUse {
    std::vector<std::shared_ptr<MappedMemory>> mappings;
    Event read;
  };

  void begin_operation();
  /// Note [Halves].
  void begin_chunk() noexcept { half_ = 1 - half_; }
  void record();
  device::Steps meet();
  device::Steps end_operation();
  void let_go_of_read();

  DevicePointer base(std::size_t rank) const;
  DevicePointer scratch() const;
  std::size_t elements_of_half(std::size_t width) const noexcept { return half_bytes_ / width; }
  /// The same where each rank has a part in it.
  std::size_t elements_of_part(std::size_t width) const noexcept;
  /// The ranks in the order in which this one reads from them: itself last.
  std::size_t source(std::size_t turn) const noexcept {
    return (peers_.own() + 1 + turn) % peers_.size();
  }
  /// The elements that a rank reduces for all.
  Range share_of(std::size_t rank, std::size_t extent, const Travel& travel) const noexcept;

  void pack(const device::ChunkLayout& layout, const Travel& travel);
  void unpack_parts(void* output, const RankParts& parts, std::size_t offset, const Travel& travel);
  void reduce(DevicePointer target, std::size_t offset_bytes, std::size_t count,
              const Travel& travel);
  void reduce_all(const device::ChunkLayout& layout, const Travel& travel);
  device::Steps combine_shares(const device::ChunkLayout& layout, const Travel& travel,
                               const std::optional<Reduction>& over_hosts);

  ExportedMemory offer_of(const Segment& segment, std::size_t bytes) const;
  std::string try_to_map(const std::vector<ExportedMemory>& tensors);
  device::Steps map_tensors(const Segment& segment, std::size_t bytes, bool& was_done);
  device::Steps allreduce_directly(const Segment& segment, const Travel& travel, bool& was_done);

  Workbench& bench_;
  IpcPeers& peers_;
  RegistrationCache& cache_;
  device::HostExchange& exchange_;
  BetweenHosts* const between_;
  CudaCounters& counters_;
  const std::uint64_t block_bytes_;
  const bool keeps_;
  const std::function<void(const std::string&)> warn_;
  std::uint64_t direct_bytes_;
  const std::size_t one_shot_bytes_;
  const std::size_t half_bytes_;
  std::size_t half_ = 0;               ///< of the chunk in progress
  std::uint64_t meetings_ = 0;         ///< counts them, equally on every rank
  std::vector<DevicePointer> direct_;  ///< where each rank's tensor is
  std::vector<std::shared_ptr<MappedMemory>> mapped_;
  std::deque<InUse> in_use_;  ///< mappings that queued work reads
};

}  // namespace ronde::cuda
