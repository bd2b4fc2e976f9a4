// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/ipc/registrations.h"
#include "backends/gpu/base/host_exchange.h"
#include "backends/gpu/gpu_resources.h"
#include "backends/gpu/kernels/segments.h"
#include "backends/shm/memory/shared_memory.h"
#include "core/src/base/steps.h"

namespace ronde::cuda {

/// Bytes of a rank's flags: a word of 32 bits for each rank of the host.
constexpr std::size_t kFlagBytes = kernels::kMostInputs * sizeof(std::uint32_t);

/// Synchronises the streams of a host's ranks at numbered meetings, which all ranks make in the
/// same order, by flags in host memory (cuStreamBatchMemOp). A rank's stream writes the number of a
/// meeting to its flag at each peer, and then waits until all peers have written it to this rank's
/// flags. A rank waits on its own flags alone, so release() can end its waits. Other processes use
/// the GPU while a stream waits.
///
/// Note [One number a rank]
/// One number for each rank is enough, because streams run in order: a flag that has reached a
/// number shows that all work queued before that meeting has run, also reads of peers' memory. A
/// rank records the next meeting behind its wait for this one, so a flag is at most one ahead.
///
/// Note [No wait for nothing]
/// A wait is queued only after an exchange between the ranks' threads has shown that all ranks have
/// queued the writes. So all that a wait depends on was queued before it, on whichever GPU: it ends
/// even if streams share a hardware queue, or processes a GPU, as long as the driver submits work
/// in the order of calls (it does not know of flags), and no rank dies.
///
/// Thread-safety: one thread at a time.
class PeerSignals {
 public:
  /// `memory`: shared by the host's ranks, zeroed, kFlagBytes for each of `size`; it is
  /// page-locked. This is the rank at `own`. Throws DriverError.
  PeerSignals(const std::shared_ptr<const DeviceContext>& context, shm::SharedMemory memory,
              std::size_t size, std::size_t own);

  /// Records the next meeting: the flags are written once the stream has run all queued work.
  void record(Stream& stream);
  /// Work queued on the stream from now on runs after all ranks have come to the meeting that this
  /// rank has recorded last.
  void wait_for_all(Stream& stream);

  /// Ends this rank's waits, also future ones, after the group has failed. It does not block, and
  /// is called repeatedly until the streams are idle, as a dying rank may still write lower
  /// numbers.
  void release() noexcept;

 private:
  const shm::SharedMemory memory_;
  const std::span<std::uint32_t> own_flags_;
  Owned<void*, &DriverApi::host_unregister> pinned_;
  std::vector<DevicePointer> written_, awaited_;  ///< flags at the others, and theirs here
  std::uint32_t recorded_ = 0;  ///< the last meeting; begins again after the largest number
  bool is_released_ = false;
};

/// Maps the fusion buffers of one host's ranks into each other by CUDA IPC, and orders their
/// streams by PeerSignals.
///
/// Note [Who closes first]
/// A rank destroys exported memory with this object, after its peers have closed their mappings
/// (forget()). Where a group has failed nobody waits for that: Ronde relies on memory living as
/// long as its mappings, which CUDA does not promise.
///
/// Thread-safety: one thread at a time.
class IpcPeers {
 public:
  /// `ranks`: their names in texts; this is the one at `own`. `resources` outlives it.
  IpcPeers(GpuResources& resources, std::vector<int> ranks, std::size_t own);

  /// All ranks map each other's memory and try it, for no longer than `patience`. `visible`: the
  /// GPUs that may be mapped (CudaOptions::visible_devices). `problem`: why CUDA IPC cannot be
  /// used, equal on all ranks; empty if it can.
  Steps connect(gpu::HostExchange& exchange, const std::vector<std::string>& visible,
                std::chrono::milliseconds patience, std::string& problem);

  std::size_t size() const noexcept { return ranks_.size(); }
  std::size_t own() const noexcept { return own_; }
  const std::vector<int>& names() const noexcept { return ranks_; }

  /// hold() maps the fusion buffers that are not mapped, and returns their number; let() closes
  /// them once no queued work uses them. After connect() they are mapped.
  std::size_t hold();
  void let() noexcept;

  /// What limits reads of other ranks' memory.
  Traffic traffic() const noexcept { return traffic_; }

  /// A rank's fusion buffer, while it is mapped.
  DevicePointer fusion(std::size_t rank) const noexcept { return peers_[rank].address; }

  /// Ends this GPU's waits for peers after the group, or the trial, has failed.
  void release() noexcept {
    if (signals_) signals_->release();
  }

  /// The two parts of a synchronisation (PeerSignals), on the resources' stream. All ranks must
  /// have called the first one before any rank calls the second one.
  void record() {
    if (signals_) signals_->record(resources_.stream());
  }
  void wait_for_all() {
    if (signals_) signals_->wait_for_all(resources_.stream());
  }

 private:
  /// What each rank shares with the others.
  struct Greeting {
    std::array<char, 48> uuid{};  ///< of its GPU
    ExportedMemory fusion;
    shm::MemoryOffer flags;  ///< from the first rank
  };
  /// The fusion buffer of a rank; that of this rank is not mapped.
  struct Peer {
    ExportedMemory memory;
    MappedMemory mapping;
    DevicePointer address = 0;
  };

  void greet(Greeting& greeting);
  void open(const std::vector<Greeting>& greetings, const std::vector<std::string>& visible);
  void look_at_peers();
  void check_sight() const;

  GpuResources& resources_;
  const std::vector<int> ranks_;
  const std::size_t own_;
  std::vector<Peer> peers_;                            ///< by rank
  PinnedMemory sight_;                                 ///< what the trial reads
  std::unique_ptr<PeerSignals> signals_;               ///< null where there are no others
  std::unique_ptr<const shm::OfferedMemory> offered_;  ///< until the others have mapped it
  Traffic traffic_ = Traffic::Local;
};

}  // namespace ronde::cuda
