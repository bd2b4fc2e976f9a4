// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/base/visible_devices.h"
#include "backends/cuda/cuda.h"
#include "backends/cuda/ipc/peer_signals.h"
#include "backends/cuda/ipc/registrations.h"
#include "backends/gpu/base/host_exchange.h"
#include "backends/gpu/base/peer_status.h"
#include "backends/gpu/gpu_resources.h"
#include "core/src/base/steps.h"

namespace ronde::cuda {

/// Bytes behind the fusion buffer: a pattern for the trial, and the flags of kernels.
constexpr std::size_t kSightBytes = 256;
constexpr std::size_t kBytesBehind = kSightBytes + kFlagBytes;

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
  /// `ranks`: all ranks' names in texts. `here`: the indices of this host's ranks among them, of
  /// which this is the one at `own`. `bench` outlives it. `are_all`: the set has all ranks of the
  /// group, so waiting kernels cannot keep the GPU of another rank busy.
  IpcPeers(GpuResources& resources, IpcSync sync, bool are_all, std::vector<int> ranks,
           std::vector<std::size_t> here, std::size_t own);
  /// No queued work may use it; if a trial hangs, it must be abandoned.
  ~IpcPeers() = default;

  /// All ranks of all hosts take part: ranks of a host map each other's memory and try it, each
  /// step within `patience`. `problem`: why CUDA IPC cannot be used, equal on all ranks; empty if
  /// it can.
  Steps connect(gpu::HostExchange& exchange, const VisibleDevices& visible,
                std::chrono::milliseconds patience, std::string& problem);

  /// Ranks of this host, numbered from 0: how many, this one, and the name of one in texts.
  std::size_t size() const noexcept { return here_.size(); }
  std::size_t own() const noexcept { return own_; }
  int name_of(std::size_t rank) const noexcept { return ranks_[here_[rank]]; }
  /// All ranks' names in texts.
  const std::vector<int>& names() const noexcept { return ranks_; }

  /// hold() maps the fusion buffers that are not mapped, and returns their number; let() closes
  /// them once no queued work uses them. After connect() they are mapped.
  std::size_t hold();
  void let() noexcept;

  /// What limits reads of other ranks' memory.
  Traffic traffic() const noexcept { return traffic_; }

  /// A rank's fusion buffer, while it is mapped.
  DevicePointer fusion(std::size_t rank) const noexcept { return addresses_[rank]; }

  /// Closes all mappings; no queued work uses them, except that of a trial that hangs.
  void forget() noexcept;
  /// Ends this GPU's waits for peers after the group has failed.
  void release() noexcept {
    if (signals_) signals_->release();
  }
  /// The same, if only a trial can be waiting: no work of the program's is queued behind it.
  void release_trial() noexcept {
    if (trial_) release();
  }
  /// Waits up to `bound` until no trial uses memory, not even a failed one; returns whether so.
  bool trial_ends(std::chrono::nanoseconds bound) noexcept;

  /// How the ranks wait for each other; Auto until connect() has chosen.
  IpcSync sync() const noexcept { return sync_; }

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
    shm::MemoryOffer flags;  ///< from the first rank of a host
  };
  /// Work that may never end, as it depends on peers for the first time: it has its own stream,
  /// touches no memory of operations, and owns what it uses.
  struct Trial {
    explicit Trial(const std::shared_ptr<const DeviceContext>& context) : stream(context) {}
    Stream stream;
    PinnedBlock sight;
    std::vector<std::shared_ptr<MappedMemory>> mappings;
  };

  void greet(Greeting& greeting);
  void open(const std::vector<Greeting>& greetings, const VisibleDevices& visible);
  void choose(const std::vector<Greeting>& greetings);
  void look_at_peers();
  void check_sight() const;
  Steps finish_trial(std::chrono::milliseconds patience, std::string& problem);
  Steps try_out(gpu::HostExchange& exchange, const VisibleDevices& visible,
                std::chrono::milliseconds patience, std::string& problem);
  Steps agree(gpu::HostExchange& exchange, std::string& problem);
  void end_trial() noexcept;
  DevicePointer place_of_sight(std::size_t rank) const noexcept {
    return addresses_[rank] + resources_.fusion_bytes();
  }

  GpuResources& resources_;
  const std::vector<int> ranks_;
  const std::vector<std::size_t> here_;
  const std::size_t own_;
  std::vector<ExportedMemory> memories_;                 ///< by rank
  std::vector<std::shared_ptr<MappedMemory>> mappings_;  ///< by rank; null for the own one
  std::vector<DevicePointer> addresses_;                 ///< by rank
  std::unique_ptr<Trial> trial_;                         ///< in progress, or one that hangs
  std::unique_ptr<PeerSignals> signals_;                 ///< null where there are no others
  const IpcSync wanted_;
  const bool are_all_;
  std::unique_ptr<const shm::OfferedMemory> offered_;  ///< until the others have mapped it
  IpcSync sync_ = IpcSync::Auto;
  Traffic traffic_ = Traffic::Local;
};

}  // namespace ronde::cuda
