// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/registration_cache.h"
#include "backends/cuda/registrations.h"
#include "backends/cuda/visible_devices.h"
#include "backends/cuda/workbench.h"
#include "backends/device/host_exchange.h"
#include "backends/device/steps.h"

namespace ronde::cuda {

/// The halves of a fusion buffer, which chunks use in turn.
constexpr std::size_t kHalves = 2;

/// Bytes behind the fusion buffer, by which ranks try out whether they reach each other's.
constexpr std::size_t kTrialBytes = 256;

/// An event that other processes can wait for.
///
/// Thread-safety: one thread at a time.
class SharedEvent {
 public:
  SharedEvent() = default;
  /// A new one, of this process. Throws DriverError.
  explicit SharedEvent(std::shared_ptr<const DeviceContext> context);
  /// That of a peer.
  SharedEvent(std::shared_ptr<const DeviceContext> context, const IpcEventHandle& handle,
              int owner);
  ~SharedEvent() { destroy(); }
  SharedEvent(SharedEvent&& other) noexcept
      : context_(std::move(other.context_)), handle_(std::exchange(other.handle_, nullptr)) {}
  SharedEvent& operator=(SharedEvent&& other) noexcept;

  EventHandle handle() const noexcept { return handle_; }
  IpcEventHandle exported() const;

 private:
  void destroy() noexcept;

  std::shared_ptr<const DeviceContext> context_;
  EventHandle handle_ = nullptr;
};

/// What a rank has done to a half of its fusion buffer.
enum class Mark : std::uint8_t {
  Packed,   ///< its elements are there
  Reduced,  ///< its share of the result is there
  Read,     ///< it has read what it needs of the others'
};
constexpr std::size_t kMarks = 3;

/// What this rank tells the others when they meet: plain bytes.
struct Greeting {
  std::array<char, 48> uuid{};  ///< of its GPU
  ExportedMemory fusion;
  std::array<IpcEventHandle, kMarks * kHalves> events{};
};

/// Ranks of one host that reach each other's fusion buffers by CUDA IPC, and are ordered by events
/// that all of them can wait for. An event is waited for only once its owner is known to have
/// recorded it, so that no wait is for nothing.
///
/// Note [Who closes first]
/// What a rank has exported, memory and events, it destroys with this object: others may have work
/// queued that uses it until they have closed their side, which they do before (forget()).
///
/// Thread-safety: one thread at a time.
class IpcPeers {
 public:
  /// Those at `here` among `ranks`, who are all that meet, and as what they are known in texts. Of
  /// `here`, this is the rank at `own`. The first two outlive it.
  IpcPeers(Workbench& bench, RegistrationCache& cache, std::shared_ptr<OpenHandles> handles,
           std::vector<int> ranks, std::vector<std::size_t> here, std::size_t own);
  /// Nothing that is queued may use it; where a trial hangs, it is to be abandoned.
  ~IpcPeers() = default;
  IpcPeers(const IpcPeers&) = delete;
  IpcPeers& operator=(const IpcPeers&) = delete;

  /// All ranks, also those of other hosts, meet; those of a host open what they need of each other,
  /// and try it out, for no longer than `patience`. Leaves in `problem` why it cannot be used, the
  /// same on every rank; an empty text if it can.
  device::Steps connect(device::HostExchange& exchange, const VisibleDevices& visible,
                        std::chrono::milliseconds patience, std::string& problem);

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
  /// Whether the trial, which failed, may still use memory.
  bool hangs() noexcept {
    end_trial();
    return trial_ != nullptr;
  }

  /// Records what this rank has done, behind all that is queued.
  void record(Mark mark, std::size_t half) { record(mark, half, bench_.stream()); }
  /// What is queued from now on runs after all ranks' last recordings.
  void wait_for_all(Mark mark, std::size_t half) { wait_for_all(mark, half, bench_.stream()); }

 private:
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
  void look_at_peers();
  void check_sight() const;
  void end_trial() noexcept;
  DevicePointer place_of_sight(std::size_t rank) const noexcept {
    return addresses_[rank] + bench_.fusion_bytes();
  }
  void record(Mark mark, std::size_t half, const Stream& stream);
  void wait_for_all(Mark mark, std::size_t half, const Stream& stream);
  const SharedEvent& event(std::size_t rank, Mark mark, std::size_t half) const {
    return events_[rank][static_cast<std::size_t>(mark) * kHalves + half];
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
  std::vector<std::array<SharedEvent, kMarks * kHalves>> events_;  ///< by rank
  std::unique_ptr<Trial> trial_;                                   ///< until it is over
};

}  // namespace ronde::cuda
