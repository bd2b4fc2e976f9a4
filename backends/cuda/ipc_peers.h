// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/cuda.h"
#include "backends/cuda/event_signals.h"
#include "backends/cuda/flag_signals.h"
#include "backends/cuda/peer_signals.h"
#include "backends/cuda/registration_cache.h"
#include "backends/cuda/registrations.h"
#include "backends/cuda/visible_devices.h"
#include "backends/cuda/workbench.h"
#include "backends/device/host_exchange.h"
#include "backends/device/steps.h"

namespace ronde::cuda {

/// Bytes behind the fusion buffer: what ranks try out whether they reach each other's by, and
/// KernelFlags.
constexpr std::size_t kSightBytes = 256;
constexpr std::size_t kBytesBehind = kSightBytes + kFlagBytes;

/// What this rank tells the others when they meet: plain bytes.
struct Greeting {
  std::array<char, 48> uuid{};  ///< of its GPU
  ExportedMemory fusion;
  EventHandles events{};
  bool has_events = false;
  shm::MemoryOffer flags;  ///< of StreamFlags, from the first rank of a host
};

/// Ranks of one host that reach each other's fusion buffers by CUDA IPC, and are ordered by
/// PeerSignals.
///
/// Note [Who closes first]
/// What a rank has exported, memory and events, it destroys with this object: others may have work
/// queued that uses it until they have closed their side, which they do before (forget()). Where a
/// group has died nobody waits for that: what others then still read or write is taken to live on
/// with their mappings, which CUDA does not promise.
///
/// Thread-safety: one thread at a time.
class IpcPeers {
 public:
  /// Those at `here` among `ranks`, who are all that meet, and as what they are known in texts. Of
  /// `here`, this is the rank at `own`. The first two outlive it. `are_all`: no other
  /// ranks of the group are on the hosts, whose GPUs kernels that wait might keep busy.
  IpcPeers(Workbench& bench, RegistrationCache& cache, std::shared_ptr<OpenHandles> handles,
           IpcHandover handover, bool are_all, std::vector<int> ranks,
           std::vector<std::size_t> here, std::size_t own);
  /// Nothing that is queued may use it; where a trial hangs, it is to be abandoned.
  ~IpcPeers() = default;
  IpcPeers(const IpcPeers&) = delete;
  IpcPeers& operator=(const IpcPeers&) = delete;

  /// All ranks, also those of other hosts, meet; those of a host open what they need of each other,
  /// and try it out, with no step of it for longer than `patience`. What is found out is the same
  /// on every rank.
  struct Findings {
    std::string problem;  ///< why it cannot be used; empty if it can
    std::string remark;   ///< why ranks do not hand over as they would best, or empty
  };
  device::Steps connect(device::HostExchange& exchange, const VisibleDevices& visible,
                        std::chrono::milliseconds patience, Findings& findings);

  /// The ranks of this host, as which they are numbered here.
  /// @{
  std::size_t size() const noexcept { return here_.size(); }
  std::size_t own() const noexcept { return own_; }
  int name_of(std::size_t rank) const noexcept { return ranks_[here_[rank]]; }
  /// @}
  /// What all ranks are called in texts.
  const std::vector<int>& names() const noexcept { return ranks_; }

  /// Maps what is not mapped (RegistrationCache). To be called before each operation, and let() to
  /// be called once its work is over, where nothing is kept.
  void hold();
  void let() noexcept;
  /// Other memory of a rank's, from the cache or opened. Throws DriverError.
  std::shared_ptr<MappedMemory> map(const ExportedMemory& memory, std::size_t rank);

  /// The fusion buffer of a rank. Between hold() and let().
  DevicePointer fusion(std::size_t rank) const noexcept { return addresses_[rank]; }

  /// Closes all that was opened; nothing that is queued uses it, but for a trial that hangs.
  void forget() noexcept;
  /// The group is dead: lets this GPU's waits for others end where they can.
  /// @{
  void release() noexcept {
    if (signals_) signals_->release();
  }
  /// Those of trials alone, behind which is nothing of the program's.
  void release_trials() noexcept {
    if (!trials_.empty()) release();
  }
  /// @}
  /// Whether no trial uses memory any more, also of those that failed. Waits for that, for no
  /// longer than `bound`.
  bool trials_end(std::chrono::nanoseconds bound) noexcept;

  /// How the ranks hand over; Auto while they have not found out.
  IpcHandover handover() const noexcept { return handover_; }

  /// Records what this rank has done, behind all that is queued.
  void record(Mark mark, std::size_t half) {
    if (signals_) signals_->record(mark, half, bench_.stream());
  }
  /// What is queued from now on runs after all ranks' last recordings.
  void wait_for_all(Mark mark, std::size_t half) {
    if (signals_) signals_->wait_for_all(mark, half, bench_.stream());
  }

 private:
  /// Work that may never end, as it depends on others for the first time: it has a stream of its
  /// own, touches no memory that operations use, and what it uses lives on with it.
  struct Trial {
    explicit Trial(const std::shared_ptr<const DeviceContext>& context) : stream(context) {}
    Stream stream;
    PinnedBlock sight;
    std::vector<std::shared_ptr<MappedMemory>> mappings;
  };

  class Meeting;

  void greet(Greeting& greeting);
  void prepare(Greeting& greeting);
  void open(const std::vector<Greeting>& greetings, const VisibleDevices& visible);
  std::vector<IpcHandover> choices(const std::vector<Greeting>& greetings) const;
  void choose(IpcHandover handover, const std::vector<Greeting>& greetings);
  device::Steps try_out(Meeting& meeting, IpcHandover handover, std::string& problem);
  void begin_trial();
  void look_at_peers();
  void check_sight() const;
  void end_trials() noexcept;
  DevicePointer place_of_sight(std::size_t rank) const noexcept {
    return addresses_[rank] + bench_.fusion_bytes();
  }

  Workbench& bench_;
  RegistrationCache& cache_;
  const std::shared_ptr<OpenHandles> handles_;
  const std::vector<int> ranks_;
  const std::vector<std::size_t> here_;
  const std::size_t own_;
  std::vector<ExportedMemory> memories_;                 ///< by rank
  std::vector<std::shared_ptr<MappedMemory>> mappings_;  ///< by rank; null for the own one
  std::vector<DevicePointer> addresses_;                 ///< by rank
  std::vector<std::unique_ptr<Trial>> trials_;           ///< the last one, and those that hang
  std::string problem_of_events_, problem_of_flags_;     ///< of this rank, if they are chosen
  std::unique_ptr<EventSignals> events_;                 ///< until they are chosen, or not
  std::unique_ptr<PeerSignals> signals_;                 ///< null where there are no others
  std::unique_ptr<PeerSignals> given_up_;                ///< that failed the trial before
  const IpcHandover wanted_;
  const bool are_all_;
  std::unique_ptr<const shm::OfferedMemory> offered_;  ///< until the others have mapped it
  IpcHandover handover_ = IpcHandover::Auto;
};

}  // namespace ronde::cuda
