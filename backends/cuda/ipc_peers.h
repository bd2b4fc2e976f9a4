// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/cuda.h"
#include "backends/cuda/peer_signals.h"
#include "backends/cuda/registrations.h"
#include "backends/cuda/verdict.h"
#include "backends/cuda/visible_devices.h"
#include "backends/cuda/workbench.h"
#include "backends/gpu/host_exchange.h"
#include "core/src/base/steps.h"

namespace ronde::cuda {

/// Bytes behind the fusion buffer: what ranks try out whether they reach each other by, and the
/// flags that kernels look at.
constexpr std::size_t kSightBytes = 256;
constexpr std::size_t kBytesBehind = kSightBytes + kFlagBytes;

/// Ranks of one host that reach each other's fusion buffers by CUDA IPC, and are ordered by
/// PeerSignals.
///
/// Note [Who closes first]
/// What a rank has exported it destroys with this object: others may have work queued that uses it
/// until they have closed their side, which they do before (forget()). Where a group has died
/// nobody waits for that: what others then still read or write is taken to live on with their
/// mappings, which CUDA does not promise.
///
/// Thread-safety: one thread at a time.
class IpcPeers {
 public:
  /// Those at `here` among `ranks`, who are all that meet, and as what they are known in texts. Of
  /// `here`, this is the rank at `own`. `bench` outlives it. `are_all`: no other ranks of the
  /// group are on the hosts, whose GPUs kernels that wait might keep busy.
  IpcPeers(Workbench& bench, IpcHandover handover, bool are_all, std::vector<int> ranks,
           std::vector<std::size_t> here, std::size_t own);
  /// Nothing that is queued may use it; where a trial hangs, it is to be abandoned.
  ~IpcPeers() = default;
  IpcPeers(const IpcPeers&) = delete;
  IpcPeers& operator=(const IpcPeers&) = delete;

  /// All ranks, also those of other hosts, meet; those of a host open what they need of each other,
  /// and try it out, with no step of it for longer than `patience`. `problem`: why it cannot be
  /// used, the same on every rank; empty if it can.
  Steps connect(gpu::HostExchange& exchange, const VisibleDevices& visible,
                std::chrono::milliseconds patience, std::string& problem);

  /// The ranks of this host, as which they are numbered here.
  /// @{
  std::size_t size() const noexcept { return here_.size(); }
  std::size_t own() const noexcept { return own_; }
  int name_of(std::size_t rank) const noexcept { return ranks_[here_[rank]]; }
  /// @}
  /// What all ranks are called in texts.
  const std::vector<int>& names() const noexcept { return ranks_; }

  /// Maps the fusion buffers that are not mapped, and returns how many: after connect() and
  /// hold() all are, until let(), which closes them, once nothing that is queued uses them.
  std::size_t hold();
  void let() noexcept;

  /// What limits the reading of other ranks' memory.
  Traffic traffic() const noexcept { return traffic_; }

  /// The fusion buffer of a rank, while it is mapped.
  DevicePointer fusion(std::size_t rank) const noexcept { return addresses_[rank]; }

  /// Closes all that was opened; nothing that is queued uses it, but for a trial that hangs.
  void forget() noexcept;
  /// The group is dead: ends this GPU's waits for others.
  void release() noexcept {
    if (signals_) signals_->release();
  }
  /// Ends those of a trial alone, behind which is nothing of the program's.
  void release_trial() noexcept {
    if (trial_) release();
  }
  /// Whether no trial uses memory any more, also one that failed. Waits for that, for no longer
  /// than `bound`.
  bool trial_ends(std::chrono::nanoseconds bound) noexcept;

  /// How the ranks wait for each other; Auto while they have not found out.
  IpcHandover handover() const noexcept { return handover_; }

  /// The two parts of a synchronisation (PeerSignals), on the stream of the workbench. All ranks
  /// are to have called the first one before any calls the second one.
  /// @{
  void record() {
    if (signals_) signals_->record(bench_.stream());
  }
  void wait_for_all() {
    if (signals_) signals_->wait_for_all(bench_.stream());
  }
  /// @}

 private:
  /// What a rank tells the others when they meet.
  struct Greeting {
    Verdict verdict;              ///< why it cannot go on
    std::array<char, 48> uuid{};  ///< of its GPU
    ExportedMemory fusion;
    shm::MemoryOffer flags;  ///< from the first rank of a host
  };
  /// Work that may never end, as it depends on others for the first time: it has a stream of its
  /// own, touches no memory that operations use, and what it uses lives on with it.
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
    return addresses_[rank] + bench_.fusion_bytes();
  }

  Workbench& bench_;
  const std::vector<int> ranks_;
  const std::vector<std::size_t> here_;
  const std::size_t own_;
  std::vector<ExportedMemory> memories_;                 ///< by rank
  std::vector<std::shared_ptr<MappedMemory>> mappings_;  ///< by rank; null for the own one
  std::vector<DevicePointer> addresses_;                 ///< by rank
  std::unique_ptr<Trial> trial_;                         ///< in progress, or one that hangs
  std::unique_ptr<PeerSignals> signals_;                 ///< null where there are no others
  const IpcHandover wanted_;
  const bool are_all_;
  std::unique_ptr<const shm::OfferedMemory> offered_;  ///< until the others have mapped it
  IpcHandover handover_ = IpcHandover::Auto;
  Traffic traffic_ = Traffic::Local;
};

}  // namespace ronde::cuda
