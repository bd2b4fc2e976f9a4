// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "backends/cuda/peer_signals.h"

namespace ronde::cuda {

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

/// Handles of a rank's events, by index_of().
using EventHandles = std::array<IpcEventHandle, kMarks * kHalves>;

/// By events that all ranks of a host can wait for. What waits for a rank that dies may wait for
/// ever: the driver does not say.
class EventSignals final : public PeerSignals {
 public:
  /// Of the rank at `own` among `size`. Throws DriverError.
  EventSignals(std::shared_ptr<const DeviceContext> context, std::size_t size, std::size_t own);

  EventHandles exported() const;
  /// Opens those of another rank; `name`: of it, in texts.
  void open(std::size_t rank, const EventHandles& handles, int name);

  void record(Mark mark, std::size_t half, Stream& stream) override;
  void wait_for_all(Mark mark, std::size_t half, Stream& stream) override;
  void forget() noexcept override;

 private:
  const std::shared_ptr<const DeviceContext> context_;
  const std::size_t own_;
  std::vector<std::array<SharedEvent, kMarks * kHalves>> events_;  ///< by rank
};

}  // namespace ronde::cuda
